"""Examples that come with the package, each a folder with a job and its data, for ``dsinga example NAME``."""
