"""Graph grain: each iteration as a Dask task graph, with a task for each segment of a worker's iteration."""
