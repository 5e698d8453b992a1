"""Nets of other libraries as models of ``dsinga.nn``: PyTorch's modules, and weights by PyTorch's names.

docs/from-torch.md says what is converted. PyTorch is imported by :func:`from_torch` only, and nothing is unpickled.
"""

from dsinga.convert.from_torch import from_torch
from dsinga.convert.weights import load_weights, save_weights, to_torch

__all__ = ["from_torch", "load_weights", "save_weights", "to_torch"]
