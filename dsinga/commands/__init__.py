"""The commands of ``dsinga``, which read options, call the package and print results."""
