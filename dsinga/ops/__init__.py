"""Array kernels behind one small interface."""

from dsinga.ops.interface import Array, Ops, Pair

__all__ = ["Array", "Ops", "Pair"]
