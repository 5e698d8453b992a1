"""Windows of fields: samples cut out of an xarray Dataset, with targets that are fields."""
