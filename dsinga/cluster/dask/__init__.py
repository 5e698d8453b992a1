"""Calls to Dask: its workers, tasks and waits, and the Dask workers on which a run is placed."""
