"""The Actors and tasks of a run, which run in the processes of Dask workers."""
