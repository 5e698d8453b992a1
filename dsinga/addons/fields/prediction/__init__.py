"""Predicts Datasets with Dask, tile by tile, and computes the errors of predictions by group."""
