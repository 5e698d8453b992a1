"""Converts a model to a job: symbols of features, and writers of the job's layers."""
