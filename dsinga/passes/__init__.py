"""Runs a net over batches: training steps, evaluations and predictions."""
