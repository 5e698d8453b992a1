"""Loss layers for numbers, classes, steps of sequences, distances between rows, and fields."""
