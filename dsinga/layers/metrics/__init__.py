"""Metric layers, and mergeable accumulators for metrics that are no means over rows."""
