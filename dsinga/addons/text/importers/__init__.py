"""Importers of texts, and of records with codes of words."""
