"""Connects a run to Dask: to a scheduler's address or an embedded cluster, with certificates and expected workers."""
