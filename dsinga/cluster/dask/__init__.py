"""What a run asks of Dask: its workers, tasks, waits, and where the parts of a run are placed."""
