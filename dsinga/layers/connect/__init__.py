"""Connection layers between the parts of a net that is cut for several workers."""
