"""Layers of sequences: recurrent layers, attention, positions, convolution over steps."""
