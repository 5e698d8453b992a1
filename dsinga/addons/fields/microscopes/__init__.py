"""Reads and writes OME-Zarr images, makes targets from label images, and makes instances from predictions."""
