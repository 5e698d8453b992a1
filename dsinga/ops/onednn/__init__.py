"""The oneDNN backend: the fast road on x86-64 and other CPUs that the library knows.

Kernels of the library's C API are reached through ctypes. Each thread has its own primitives and scratch memory, so
that workers in one process never wait for each other; the machine code behind them is shared by the library.
"""
