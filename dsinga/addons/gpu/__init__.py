"""Training on NVIDIA GPUs: kernels by CuPy, and iterations captured as graphs."""
