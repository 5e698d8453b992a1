"""The numpy backend, the reference for all kernels."""
