"""Reinforcement learning with remote actors: Dask workers that step environments in processes of their own."""
