"""Reads batches from sources of records: opens a job's stores, orders the records, and prefetches batches."""
