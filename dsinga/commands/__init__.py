"""The commands of ``dsinga``: each reads its options, calls the package and prints the result."""
