"""Loops compiled by numba, if installed: each replaces several kernels by one pass over memory, with the same bits.

Numba compiles a loop once, in a process of its own. Others load the machine code from a cache, without numba.
``DSINGA_COMPILED=0`` in the environment disables the loops.
"""
