"""Trains nets on gridded data in xarray Datasets (climate fields, microscope images), and predicts Datasets."""
