"""Converts a model to a job: symbolic tensors, and writers of the job's layers."""
