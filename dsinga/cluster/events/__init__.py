"""Sends events of runs to Dask's scheduler, for the dashboard."""
