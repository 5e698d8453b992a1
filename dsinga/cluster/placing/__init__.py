"""A job is prepared for the Dask workers at hand: placed on them, configured, and checked there."""
