"""Reinforcement learning with actors on a Dask cluster, which step environments in their own processes."""
