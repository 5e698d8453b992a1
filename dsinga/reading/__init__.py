"""Reads batches of training records: opens a job's stores, shuffles, and reads ahead in a thread."""
