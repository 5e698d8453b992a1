"""What happens in runs, sent to Dask's scheduler for the dashboard."""
