"""What computes the steps of training, and the local engine: one net in this process, without servers or Dask."""
