"""Pricing the partitionings of a job, on this machine or on a cluster that is not there."""
