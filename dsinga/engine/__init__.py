"""Engines compute the steps of training; the local engine trains in one process, without servers or Dask."""
