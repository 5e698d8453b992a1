"""Searching for the best settings of a job."""
