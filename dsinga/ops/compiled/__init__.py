"""Loops compiled by numba, if installed: each replaces several kernels by one pass over memory, with the same bits.

``DSINGA_COMPILED=0`` in the environment disables them.
"""
