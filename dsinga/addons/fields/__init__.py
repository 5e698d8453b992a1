"""Fields: windows of climate data as records, leads, climatology, and predictions of Datasets."""
