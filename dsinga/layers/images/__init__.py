"""Layers of images and volumes: convolution, pooling, padding and sizes."""
