"""The queue of runs on a cluster: a run claims threads of Dask workers, or waits for some."""
