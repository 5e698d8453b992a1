"""Models: nets described in Python or by jobs, with their params, training and predictions."""
