"""Loops compiled by numba, where it is installed: each does in one pass over memory what several kernels do.

Their results have the same bits as those kernels', so that workers with and without numba agree.
``DSINGA_COMPILED=0`` in the environment does without them.
"""
