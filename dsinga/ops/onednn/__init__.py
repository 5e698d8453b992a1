"""The oneDNN backend: kernels of the oneDNN library for x86-64 and other CPUs, called through ctypes.

Threads have their own primitives and scratch memory, so that workers in one process never wait for each other. The
primitives share machine code. Exceptions to the library's choice of implementations are in choices.py.
"""
