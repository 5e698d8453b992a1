"""Writes, checks and reads record stores, zarr groups in dsinga's own format."""
