"""Layers, losses, initialisers and a schedule of nets for tables, which any net can use."""
