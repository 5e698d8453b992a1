"""Losses: of numbers, classes, steps, tags, policies and fields."""
