"""Connects a run to Dask: an embedded cluster or a scheduler's address, certificates, workers still to come."""
