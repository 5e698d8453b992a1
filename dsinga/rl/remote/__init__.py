"""Reinforcement learning with remote actors, which step environments in processes of a Dask cluster."""
