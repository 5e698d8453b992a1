"""Texts: their vocabularies and tokens, the layers that read and tag them, generation and translation."""
