"""From sources of records to batches: a job's stores and nets, the order of records, batches, prefetching."""
