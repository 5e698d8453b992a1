"""The oneDNN backend: fast kernels of the oneDNN library for x86-64 and other CPUs, called through ctypes.

Threads have their own primitives and scratch memory, so that workers in one process never wait for each other.
Exceptions to the library's choice of implementations are in choices.py.
"""
