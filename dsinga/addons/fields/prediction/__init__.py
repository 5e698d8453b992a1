"""Predictions of Datasets, computed tile by tile wherever Dask computes, and their errors by group."""
