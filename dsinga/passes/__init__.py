"""Runs a net over batches: training steps, evaluations and forward passes."""
