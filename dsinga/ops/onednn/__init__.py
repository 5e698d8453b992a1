"""The oneDNN backend: fast kernels of the oneDNN library for x86-64 and other CPUs, called through ctypes.

choices.py replaces some of the library's implementations.
"""
