"""Layers for rows and channels: products, activations, normalisations, sums, embeddings and shapes."""
