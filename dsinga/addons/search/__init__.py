"""Searches for the best settings (hyperparameters) of a job."""
