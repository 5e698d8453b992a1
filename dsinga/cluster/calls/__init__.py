"""What calls of the API do on a Dask cluster: finding it, training there, forward passes, runs in the background."""
