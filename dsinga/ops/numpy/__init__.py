"""The numpy backend: the reference of all kernels."""
