"""Trains nets on gridded data in xarray Datasets, such as climate fields and microscope images, and predicts it."""
