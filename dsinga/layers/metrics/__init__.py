"""Metrics beside a loss, and the states that they add up to."""
