"""Finds SINGA's layer type for a word of Keras, for errors of job files."""

from __future__ import annotations

import re

from dsinga import nn
from dsinga.base.registry import register


@register("hook", "type_of_word")
def type_of_word(name: str) -> str:
    """Return the layer type of a function of ``nn``, as its docstring says: kConvolution of Conv2D; "" if none."""
    function = getattr(nn, name, None) if name in nn.__all__ else None
    found = re.search(r"\((k[A-Z]\w*)\)", getattr(function, "__doc__", None) or "")
    return found[1] if found else ""
