"""Layers that read records and labels, change images, and write outputs."""
