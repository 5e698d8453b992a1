"""Calls Dask: lists its workers, sends tasks and waits for them, and places runs on Dask workers."""
