"""Engines, which compute the steps of training; the local engine trains one net without servers or Dask."""
