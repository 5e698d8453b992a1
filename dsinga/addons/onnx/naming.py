"""Names layers after params and nodes of ONNX files, as PyTorch, Keras, Caffe2 and dsinga write them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

# Ends of the names of params after the name of their module.
PARAM = re.compile(
    r"(.+?)[./_:](weights?|bias|kernel|scale|gamma|beta|slope|mean|variance|running_mean|running_var|[wb]_\d+)$"
)
# Names of params that TensorFlow writes, as "model/conv/Conv2D/ReadVariableOp:0" of the module "model/conv".
VARIABLE = re.compile(r"(.+?)/(?:[A-Z]\w*/)?ReadVariableOp(?:_\d+)?(?::\d+)?$")
NUMBERED = re.compile(
    r"onnx::\w+_\d+|_?val_\d+|\d+|arith_\w+|[cC]onst\w*|(.*/)?Constant(_\d+)?_output_\d+|.*/[xy](:\d+)?"
)  # names that exporters make up


def is_made_up(name: str) -> bool:
    """Whether an exporter made up a name, such as "onnx::MatMul_12"."""
    return not name or NUMBERED.fullmatch(name) is not None


def is_lone(name: str) -> bool:
    """Whether a param's name lacks a module that could name a layer, such as "cls_token"."""
    return not (is_made_up(name) or " " in name or PARAM.fullmatch(name) or VARIABLE.fullmatch(name))


def layer_name(node: Any, params: Sequence[str], shared: Collection[str] = ()) -> str:
    """Choose the name of a node's layer: its params' module, else the node's name, else its operator.

    The params "layer1.0.conv1.weight" and the node "/layer1/layer1.0/conv1/Conv" both give "layer1.0.conv1".
    """
    own = module_of(node)
    for param in params:
        match = PARAM.fullmatch(param) or VARIABLE.fullmatch(param)
        if match and not is_made_up(param) and not (own and param in shared):
            return plain(match[1])
    return own or node.op_type.lower()


def module_of(node: Any) -> str:
    """Return the module that a node names, or ""; PyTorch's newer exporter writes it as metadata."""
    for beside in node.metadata_props:
        if beside.key == "pkg.torch.onnx.name_scopes" and (scopes := re.findall(r"'([^']*)'", beside.value)[:-1]):
            return plain(scopes[-1])
    return plain(node_path(node.name, node.op_type))


def node_path(node: str, op_type: str) -> str:
    """Return the module's path in a node's name, or ""."""
    if "/" not in node:
        return "" if is_made_up(node) or re.match(r"node_|n\d+$", node) or node == op_type else node
    parts = [part for part in node.split("/") if part]
    if parts and re.fullmatch(rf"{op_type}(_\d+)?", parts[-1]):
        parts.pop()
    path: list[str] = []
    for part in parts:  # PyTorch writes "layer1/layer1.0" for the child 0 of layer1
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return ".".join(path)


def plain(name: str) -> str:
    """Replace the characters of a name that layer names cannot have."""
    return re.sub(r"[^\w.\-]+", ".", name).strip(".")
