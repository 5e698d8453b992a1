"""Evaluation and predictions by the workers of a Dask cluster, and lazy predictions wherever Dask computes."""
