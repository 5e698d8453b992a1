"""The cupy backend: kernels on NVIDIA GPUs, by CUDA sources of this package (``*.cu``), cuBLAS and cuDNN.

Importing its modules raises UserError without CuPy, a device or a new enough driver.
"""
