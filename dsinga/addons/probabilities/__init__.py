"""Predictions that say how sure they are: quantiles, distributions and ensembles, their losses and their scores."""
