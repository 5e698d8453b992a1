"""Models: nets described in Python or by jobs, with params, training and predictions."""
