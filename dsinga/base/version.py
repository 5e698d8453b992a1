"""The version number of dsinga."""

__version__ = "0.1.0a1"
