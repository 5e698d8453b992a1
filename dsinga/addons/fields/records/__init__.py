"""Windows of fields as records: samples cut out of an xarray Dataset, with targets that are fields."""
