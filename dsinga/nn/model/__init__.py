"""Models: described in Python or by jobs; their params, records, training and predictions."""
