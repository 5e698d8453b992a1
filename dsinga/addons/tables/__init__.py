"""Data frames as records: columns of numbers, categories and dates, learnt once and applied by name."""
