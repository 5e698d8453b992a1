"""Reinforcement learning with remote actors, which step environments on a Dask cluster."""
