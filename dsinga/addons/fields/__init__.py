"""Fields: windows of climate data and of microscopy as records, leads, climatology, and predictions of Datasets."""
