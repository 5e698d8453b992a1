"""Predicts the iteration time of a partitioned net on a cluster, and finds the fastest partitioning."""
