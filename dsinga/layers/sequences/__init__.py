"""Layers for sequences: recurrent layers, attention, positional encodings, convolution over steps."""
