"""``nn.load_onnx``: the model of an ONNX file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsinga import nn
from dsinga.addons.onnx.files import read_onnx, tensor_array
from dsinga.addons.onnx.import_net import import_graph
from dsinga.addons.onnx.values import Constant
from dsinga.base.registry import register
from dsinga.nn.words.keras_arguments import checked


@register("word", "load_onnx")
@checked
def load_onnx(path: str | os.PathLike[str], *shapes: Any, name: str = "") -> nn.Model:
    """Return the model of a net in an ONNX file, with its params; its layers have the names of the net's modules.

    Args:
        path: of the file; data beside it are read, too.
        shapes: the shape of a record of each input, without the batch, where the file leaves sizes open.
        name: of the model; by default that of the file.

    Raises UserError, naming all nodes that no layer computes, and for a file that is damaged.
    """
    model, folder = read_onnx(path), Path(path).parent
    constants = {tensor.name: Constant(tensor_array(tensor, folder), tensor.name) for tensor in model.graph.initializer}
    version = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    return import_graph(model.graph, constants, version, shapes, name or Path(path).stem)
