"""Text: vocabularies and tokens, layers that read and tag texts, generation and translation."""
