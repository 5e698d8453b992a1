"""A registry of the ONNX operators that have layers, with the functions that make them.

Arguments are the node's operands (symbolic tensors and constants, None for missing ones), attributes by name, and
``place``, a :class:`dsinga.addons.onnx.node_place.NodePlace`. Functions return a tensor, or one for each output, and
raise NoLayer for unsupported nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsinga.addons.onnx.operators_images import IMAGES
from dsinga.addons.onnx.operators_norms import NORMS
from dsinga.addons.onnx.operators_numbers import ARITHMETIC, NUMBERS
from dsinga.addons.onnx.operators_products import PRODUCTS
from dsinga.addons.onnx.operators_sequences import SEQUENCES
from dsinga.addons.onnx.operators_shapes import SHAPES

OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{**ARITHMETIC, **NUMBERS, **NORMS, **PRODUCTS},
    **{**IMAGES, **SEQUENCES, **SHAPES},
}
# Advice for operators without a layer: the nearest ones.
NEAREST: Mapping[str, str] = {
    **dict.fromkeys(("Floor", "Ceil", "Round", "Tan", "Mod"), "nn.Lambda with your own function"),
    **{"GridSample": "kResize", "RoiAlign": "kResize", "MaxUnpool": "kUpsampling", "DeformConv": "kConvolution"},
}
