"""Data frames as records: columns of numbers, categories, dates and gaps, learnt once and applied by name."""
