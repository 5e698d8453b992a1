"""The oneDNN backend: kernels of the oneDNN library for x86-64 and other CPUs, called through ctypes.

Each thread has its own primitives and scratch memory, so that workers in one process never wait for each other; the
library shares the machine code behind them. The table in choices.py lists the exceptions to the library's own choice of
implementations.
"""
