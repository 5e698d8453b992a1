"""Checks whether all Dask workers of a run can train it, before anything is placed on them."""
