"""Cuts windows out of an xarray Dataset as training records, with fields as inputs and targets."""
