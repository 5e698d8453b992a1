"""Which run gets which threads of the Dask workers of a cluster, and which one waits."""
