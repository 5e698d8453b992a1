"""Optional features, each removable alone; the core and the cluster load them only by name."""
