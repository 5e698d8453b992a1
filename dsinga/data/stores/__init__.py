"""Record stores: zarr groups that dsinga writes, checks and reads."""
