"""Texts as records: their vocabulary."""
