"""Probabilistic predictions: quantiles, distributions and ensembles, their losses and their scores."""
