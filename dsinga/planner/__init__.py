"""The planner: what an iteration of a partitioned net costs on a cluster, and which partitioning costs least."""
