"""Whether all Dask workers of a run can train it, asked before anything is placed on them."""
