"""A training run on a Dask cluster: its worker groups, servers, snapshots and recovery."""
