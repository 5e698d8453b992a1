"""Evaluation, predictions and generated text by the workers of a Dask cluster."""
