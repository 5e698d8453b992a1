"""Metrics in addition to a loss, and the states that they add up to."""
