"""Features that can be taken out one by one; neither the core nor the cluster imports them but by name."""
