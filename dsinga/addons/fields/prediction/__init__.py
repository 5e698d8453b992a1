"""Predictions of Datasets: lazy Datasets of targets, computed tile by tile wherever Dask computes."""
