"""Waves: a layer, its message, a metric, files of records, and a command."""
