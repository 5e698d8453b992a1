"""Layers of rows and channels: products, activations, normalisations, sums and shapes."""
