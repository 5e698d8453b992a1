"""Losses of numbers, classes, steps of sequences, distances between rows, and fields."""
