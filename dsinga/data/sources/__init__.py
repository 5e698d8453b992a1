"""Opens records from arrays, data frames, datasets and files, each kind in its own module."""
