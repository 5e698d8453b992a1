"""Trackers: extensions that log a run's history to MLflow, TensorBoard or CSV files."""
