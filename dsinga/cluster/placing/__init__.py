"""Prepares a job for the Dask workers at hand: places it on them, configures it, and checks it there."""
