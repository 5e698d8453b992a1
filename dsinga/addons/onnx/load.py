"""``nn.load_onnx``, which reads an ONNX file as a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsinga import nn
from dsinga.addons.onnx.files import REMEDY, error_text, fault_of_shapes, read_onnx, tensor_array
from dsinga.addons.onnx.import_net import import_graph
from dsinga.addons.onnx.values import Constant
from dsinga.addons.onnx.written_files import DATA
from dsinga.base.durable_files import local_folder, read_saved
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.nn.words.keras_arguments import checked

if TYPE_CHECKING:
    from onnx import ModelProto

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"  # PyTorch's newer exporter writes it as metadata of a value


@register("word", "load_onnx")
@checked
def load_onnx(path: str | os.PathLike[str], *shapes: Any, name: str = "") -> nn.Model:
    """Read the net in an ONNX file as a model with its params; layers are named after the net's modules.

    Args:
        path: of the file; its external data files are read too.
        shapes: each input's record shape, without the batch, if the file leaves sizes open.
        name: of the model; by default the file's.

    *Names.* A node with weights becomes a layer with the path of its params: "layer1.0.conv1.weight" gives the layer
    "layer1.0.conv1" with the params "layer1.0.conv1_weight" and "layer1.0.conv1_bias". MatMul and Add become one layer,
    as the nodes of GELU, SiLU, layer normalisation and attention do. An array of two layers is one param.

    *Params.* Weights train, whether they are initializers or constants. Arrays that nodes combine, such as a table of
    positions or ``exp(scale)``, train if the file names them as a net does. Arrays under names that exporters make up
    ("onnx::Add_12"), buffers that PyTorch's newer exporter marks, masks, and bounds of Clip keep their values. A
    convolution's weight that is computed from other arrays is refused by its name.

    *Numbers.* Minus infinity in a mask becomes -1e9. Where is a sum of products with 0 and 1, so NaN and infinity in a
    hidden branch give NaN.

    *Checks.* Nothing of a file is executed. It requires IR version 3 and opset 7 at least, and versions that the
    installed onnx knows. Dtypes are float32, integers and truth values (float64 in constants). Control flow (If, Loop,
    Scan), sparse tensors and operators of other domains are refused; functions of the file are expanded first. Data in
    other files must be regular files below the folder, no links; they are read into memory. Constants are computed by
    arithmetic, casts, shapes and indices only; they may have 128 MB, and a net 4,000 layers.

    Raises UserError, naming all nodes that no layer computes, and for a damaged file.
    """
    path = local_folder(path)
    model, light, constants = read_saved(path.parent, (path.name, path.name + DATA), lambda _: _read(path))
    version = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    fault = fault_of_shapes(light)
    try:
        net = import_graph(model.graph, constants, version, shapes, name or path.stem)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:  # whatever shapes that do not fit lead numpy to
        fault = fault or f"{type(error).__name__}: {error_text(error)}"
    if fault:
        raise UserError(f"{path}: its nodes do not fit together ({fault}); {REMEDY}")
    return net


def _read(path: Path) -> tuple[ModelProto, ModelProto, dict[str, Constant]]:
    model, light = read_onnx(path)
    kinds = {
        value.name: next((each.value for each in value.metadata_props if each.key == KIND), "FOLDED")
        for value in model.graph.value_info
    }
    kinds = kinds if "PARAMETER" in kinds.values() else {}
    constants = {
        tensor.name: Constant(
            tensor_array(tensor, path.parent), tensor.name, kind=kinds.get(tensor.name, "FOLDED" if kinds else "")
        )
        for tensor in model.graph.initializer
    }
    return model, light, constants
