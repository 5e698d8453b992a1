"""Reads and writes OME-Zarr images, makes targets from label images, and makes instances from predictions."""

# OME-Zarr's metadata are read and written here: ome-zarr installs some 55 packages, ngff-zarr a WebAssembly runtime and
# a second zarr, and neither names the damaged part of an image.
