"""Reads ONNX files safely, even hostile ones: a net is checked before any use, and nothing is executed.

It refuses damaged files, unknown versions and operators, control flow, unsupported dtypes, and tensors outside the
net's folder. Weights in other files stay on disk until :func:`tensor_array` reads them.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.durable_files import current_file, local_folder
from dsinga.base.errors import UserError
from dsinga.base.regular_files import is_of_torch, open_regular, read_regular

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

MOST_BYTES = (2 << 30) - 1  # of a message of protobuf, so of a file without its external data
OLDEST_IR, OLDEST_OPSET = 3, 7  # since opset 7 arrays are broadcast as in numpy
MOST_NODES, MOST_DEPTH = 1 << 18, 100  # nodes with functions written out; depth of functions that call each other
MOST_SIZE, MOST_RANK = 1 << 40, 32  # the product of the sizes of an array's axes, but for 0; the number of axes
DOMAINS = ("", "ai.onnx.ml")
MOST_RECORD = 1 << 28  # numbers of one record
MOST_SHARED = 4  # times that the tensors of a net may take the bytes of its external files
SHOWN, MOST_LETTERS = 20, 400  # nodes that a message names; letters of a message of ONNX's checker
MOST_SEEN = 1024  # numbers of a tensor that may be a shape
MOST_PATH, MOST_DIGITS = 4096, 40  # letters of the path of an external file, digits of a place in it
MOST_WRITTEN = 1 << 26  # bytes of nodes that come of calls of the file's functions
REMEDY = "get the file anew, or export it again"
# The supported dtypes; float64 only for tensors, as scalars of float32 nets often are.
DTYPES = {"FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL"}


def onnx_package() -> Any:
    """Return the package onnx; raise UserError if it is not installed."""
    try:
        import onnx.checker
        import onnx.inliner
        import onnx.shape_inference
    except ImportError as error:
        raise UserError(f"ONNX files need the package onnx ({error}): pip install 'dsinga[onnx]'") from None
    return onnx


def read_onnx(path: str | os.PathLike[str]) -> tuple[ModelProto, ModelProto]:
    """Read and check the net in an ONNX file; see :func:`checked_net`."""
    onnx, path = onnx_package(), local_folder(path)
    from google.protobuf.message import DecodeError

    try:
        return checked_net(onnx.ModelProto.FromString(read_regular(current_file(path), MOST_BYTES)), path.parent)
    except DecodeError as error:
        if is_of_torch(current_file(path)):
            raise UserError(
                f"{path} is a file of PyTorch, not of ONNX; load it into a module, as by "
                f"module.load_state_dict(torch.load({path.name!r})), and write dsinga.convert.from_torch(module, shape)"
            ) from None
        raise UserError(f"{path} is not an ONNX file, or was cut short ({error}); get it anew") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; name an ONNX file") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def checked_net(model: ModelProto, folder: Path) -> tuple[ModelProto, ModelProto]:
    """Check a net from the ONNX file in ``folder``; return it with its functions expanded, and its light net.

    Each value has one name and precedes its uses. Each tensor has as many bytes as its shape needs, in this file or
    another. Raises UserError, naming the node or tensor.
    """
    _check_versions(model)
    model = _without_functions(model)
    _check_texts(model)
    for value in (*model.graph.input, *model.graph.output):
        _check_type(value)
    for where, tensor in _tensors(model):
        _check_tensor(tensor, where, folder)
    _check_shared(model, folder)
    for node in model.graph.node:
        node.domain = _domain(node.domain)
        for attribute in node.attribute:
            if (tensor := attribute.t).data_location == tensor.EXTERNAL:
                attribute.t.CopyFrom(onnx_package().numpy_helper.from_array(tensor_array(tensor, folder), tensor.name))
    light = light_net(model)
    _check_nodes(model, light)
    return model, light


def tensor_array(tensor: TensorProto, folder: str | os.PathLike[str]) -> np.ndarray:
    """Read a tensor of a checked net; ``folder`` has the ONNX file."""
    onnx = onnx_package()
    if tensor.data_location != tensor.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    path, offset, _ = _external_place(tensor, where := f"the tensor {value_text(tensor.name)}", Path(folder))
    try:
        with open_regular(path) as file:
            array = np.fromfile(file, dtype.newbyteorder("<"), math.prod(shape), offset=offset)
        return array.reshape(shape).astype(dtype, copy=False)
    except (OSError, ValueError) as error:  # ValueError: it was cut meanwhile
        raise UserError(f"{where} cannot be read from {path}: {error}; get the file anew") from None


def node_text(node: NodeProto) -> str:
    """Describe a node for a message: its operator, and its name or else its output."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    named = value_text(node.name) if node.name else f"of {value_text(next(iter(node.output), ''))}"
    return f"the node {named} ({value_text(operator)[1:-1]})"


def _check_versions(model: ModelProto) -> None:
    onnx = onnx_package()
    newest = onnx.defs.onnx_opset_version()
    if not model.HasField("graph") or not model.ir_version:
        raise UserError("it has no graph of ONNX, so it is another file or was cut short; get it anew")
    opsets = {_domain(opset.domain): opset.version for opset in model.opset_import}
    if "" not in opsets:
        raise UserError("it does not say the opset of its operators, so it was cut short; get it anew")
    for what, version, oldest, latest in (
        ("IR version", model.ir_version, OLDEST_IR, onnx.IR_VERSION),
        ("opset", opsets[""], OLDEST_OPSET, newest),
    ):
        if version > latest:
            raise UserError(f"it has the {what} {version}, but onnx {onnx.__version__} knows {latest}; upgrade onnx")
        if version < oldest:
            remedy = "convert it with onnx.version_converter, or export it anew"
            raise UserError(f"it has the {what} {version}, older than {oldest}; {remedy}")


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _without_functions(model: ModelProto) -> ModelProto:
    """Replace calls of the file's own functions by the functions' nodes."""
    onnx = onnx_package()
    functions = {(_domain(each.domain), each.name, each.overload): each for each in model.functions}
    for nodes in (model.graph.node, *(function.node for function in functions.values())):
        _refuse_inner_graphs(nodes)
    calls = {key: [_callee(node) for node in function.node] for key, function in functions.items()}
    try:
        order = [key for key in TopologicalSorter(calls).static_order() if key in functions]
    except CycleError:
        raise UserError("a function of the file calls itself; export the net without functions") from None
    sizes: dict[tuple[str, str, str], int] = {}
    written: dict[tuple[str, str, str], int] = {}  # bytes
    depths: dict[tuple[str, str, str], int] = {}
    for key in order:
        sizes[key] = min(sum(sizes.get(callee, 1) for callee in calls[key]), MOST_NODES + 1)
        own = zip(calls[key], functions[key].node, strict=True)
        bytes_made = sum(written[callee] if callee in written else node.ByteSize() for callee, node in own)
        written[key] = min(bytes_made, MOST_WRITTEN + 1)
        depths[key] = 1 + max((depths.get(callee, 0) for callee in calls[key]), default=0)
    count = sum(sizes.get(_callee(node), 1) for node in model.graph.node)
    if count > MOST_NODES or max(depths.values(), default=0) > MOST_DEPTH:
        raise UserError(f"its functions make a net of {count:,} nodes, or are nested too deeply; export it in parts")
    if sum(written.get(_callee(node), 0) for node in model.graph.node) > MOST_WRITTEN:
        raise UserError(
            f"its functions make nodes of more than {MOST_WRITTEN:,} bytes; export the net without functions"
        )
    if functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"its functions cannot be written out ({first_line(error)}); export it without them"
            ) from None
    return model


def _callee(node: NodeProto) -> tuple[str, str, str]:
    return _domain(node.domain), node.op_type, node.overload


def _refuse_inner_graphs(nodes: Iterable[NodeProto]) -> None:
    """Raise UserError, naming all, for nodes with inner graphs, such as If, Loop and Scan."""
    inner = [node_text(node) for node in nodes if any(each.HasField("g") or each.graphs for each in node.attribute)]
    if inner:
        raise UserError(f"control flow does not become layers: {_listed(inner)}; export the net without it")


def _check_texts(model: ModelProto) -> None:
    """Raise UserError for texts that are not UTF-8, which protobuf returns as bytes."""
    graph, texts = model.graph, [opset.domain for opset in model.opset_import]
    for value in (*graph.input, *graph.output):
        texts += [value.name, *(dim.dim_param for dim in value.type.tensor_type.shape.dim)]
    for _, tensor in _tensors(model):
        texts += [tensor.name, *(entry.value for entry in tensor.external_data)]
    for node in graph.node:
        texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [attribute.name for attribute in node.attribute]
        texts += [text for beside in node.metadata_props for text in (beside.key, beside.value)]
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"it has {value_text(text)} in place of a text; get the file anew, or export it again")


def _check_type(value: ValueInfoProto) -> None:
    name = value_text(value.name)
    if not value.type.HasField("tensor_type"):
        if value.type.WhichOneof("value"):
            raise UserError(f"{name} is a {value.type.WhichOneof('value')}, no array; export the net without it")
        return
    sizes = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
    if min(sizes, default=1) < 0 or math.prod(sizes) > MOST_RECORD:
        raise UserError(f"{name} has the shape {value_text(sizes)}, which no record has; export the net anew")
    dtype = _dtype_name(value.type.tensor_type.elem_type)
    if dtype not in DTYPES or dtype == "DOUBLE":
        raise UserError(f"{name} has numbers of {dtype}; dsinga computes in float32: export the net in float32")


def _dtype_name(number: int) -> str:
    names = onnx_package().TensorProto.DataType
    return names.Name(number) if number in names.values() else f"the unknown kind {number}"


def _tensors(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield a net's tensors with names for messages."""
    sparse = "has a sparse tensor; export the net with dense ones"
    if model.graph.sparse_initializer:
        raise UserError(f"it {sparse}")
    for tensor in model.graph.initializer:
        yield f"the tensor {value_text(tensor.name)}", tensor
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise UserError(f"{node_text(node)} {sparse}")
            for tensor in (*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors):
                yield f"the tensor of {node_text(node)}", tensor


def _check_tensor(tensor: TensorProto, where: str, folder: Path) -> None:
    """Raise UserError unless a tensor has a supported dtype and as many numbers as its shape."""
    helper = onnx_package().helper
    name, shape = _dtype_name(tensor.data_type), tuple(tensor.dims)
    if name not in DTYPES:
        raise UserError(f"{where} has numbers of {name}; dsinga computes in float32: export the net in float32")
    fits = len(shape) <= MOST_RANK and min(shape, default=0) >= 0 and math.prod(size or 1 for size in shape) < MOST_SIZE
    if not fits or tensor.HasField("segment"):
        raise UserError(f"{where} has the shape {value_text(shape)}, which no array has, or is a part of a tensor")
    bytes_each = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if tensor.data_location == tensor.EXTERNAL:
        _, _, size = _external_place(tensor, where, folder)
    elif tensor.HasField("raw_data"):
        size = len(tensor.raw_data)
    else:
        size = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))) * bytes_each
    if size != (needed := math.prod(shape) * bytes_each):
        fault = f"{where} has {size:,} bytes, but its shape {value_text(shape)} needs {needed:,}"
        raise UserError(f"{fault}; get the file anew, or export it again")


def _check_shared(model: ModelProto, folder: Path) -> None:
    """Raise UserError if tensors reuse bytes of external files so often that they fill the memory."""
    apart = [(where, tensor) for where, tensor in _tensors(model) if tensor.data_location == tensor.EXTERNAL]
    places = [_external_place(tensor, where, folder) for where, tensor in apart]
    there = sum(os.path.getsize(path) for path in {path for path, _, _ in places})
    if sum(length for _, _, length in places) > MOST_SHARED * there:
        raise UserError(f"its tensors take the same bytes of files more than {MOST_SHARED} times; export it again")


def _external_place(tensor: TensorProto, where: str, folder: Path) -> tuple[Path, int, int]:
    """Find an external tensor: its file in ``folder``, its first byte there, and its number of bytes.

    Raises UserError if the path leaves ``folder`` or has a link, or the file lacks these bytes.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    shown = f"{where} is in the file {value_text(location)}"
    places = [entries.get(key, "0") for key in ("offset", "length")]
    if not all(text.removeprefix("-").isdecimal() and len(text) <= MOST_DIGITS for text in places):
        raise UserError(f"{shown} at a place that is no number; get the file anew")
    offset, length = map(int, places)
    parts = PurePosixPath(location[: MOST_PATH + 1]).parts
    if len(location) > MOST_PATH:
        raise UserError(f"{shown}, which cannot be read: its path is too long; copy it beside the net")
    if not parts or ".." in parts or "\0" in location or "\\" in location or Path(location).anchor:
        raise UserError(f"{shown}, which is not in the folder of the net; copy it there, and name it by its name alone")
    path = folder
    for part in parts:
        path = path / part
        if os.path.islink(path):
            raise UserError(f"{shown}, where {path} is a link, which may lead anywhere; copy the file itself there")
    path = current_file(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shown}, which cannot be read: {reason}; copy it beside the net") from None
    length = size - offset if "length" not in entries else length
    if offset < 0 or length < 0 or offset + length > size:
        raise UserError(f"{shown} at bytes that it does not have, {offset:,} to {offset + length:,}; get the file anew")
    return path, offset, length


def light_net(model: ModelProto) -> ModelProto:
    """Turn large tensors of a net into inputs, because ONNX's checks copy tensors."""
    onnx, graph = onnx_package(), model.graph
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if (
            node.op_type == "Constant"
            and len(node.attribute) == len(node.output) == 1
            and node.attribute[0].HasField("t")
        ):
            tensors.append((node.output[0], node.attribute[0].t))
    large = [(name, x) for name, x in tensors if math.prod(x.dims) > MOST_SEEN or x.data_location == x.EXTERNAL]
    names = {name for name, _ in large}
    light = type(model)(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = "net"
    light.graph.node.extend(node for node in graph.node if names.isdisjoint(node.output))
    light.graph.input.extend(value for value in graph.input if value.name not in names)
    light.graph.input.extend(onnx.helper.make_tensor_value_info(name, x.data_type, x.dims) for name, x in large)
    light.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name not in names)
    light.graph.output.extend(graph.output)
    return light


def _check_nodes(model: ModelProto, light: ModelProto) -> None:
    """Raise UserError for operators of other domains, all at once, and for the first fault that ONNX finds."""
    onnx, graph = onnx_package(), light.graph
    if custom := [node_text(node) for node in model.graph.node if node.domain not in DOMAINS]:
        raise UserError(f"only ONNX's own operators become layers, not {_listed(custom)}; export the net without them")
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {_domain(opset.domain): opset.version for opset in model.opset_import}
    inputs = [value.name for value in graph.input]
    known = {*inputs}  # which may have tensors, too: up to version 3 of the format, and as defaults
    inputs += [tensor.name for tensor in graph.initializer if tensor.name not in known]
    values = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in names]
        for names in (inputs, [value.name for value in graph.output])
    )
    try:
        onnx.checker.check_graph(onnx.helper.make_graph(graph.node, "net", *values), context)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise UserError(f"it is not as ONNX says ({error_text(error)}); {REMEDY}") from None


def fault_of_shapes(light: ModelProto) -> str:
    """Let ONNX check shapes and dtypes of a light net (large tensors made inputs); return its complaint or ""."""
    onnx = onnx_package()
    for value in light.graph.output:
        value.ClearField("type")
    try:
        onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        return error_text(error)
    return ""


def error_text(error: Exception) -> str:
    """Shorten an onnx error to one line for a message."""
    return textwrap.shorten(str(error)[: 4 * MOST_LETTERS], MOST_LETTERS).rstrip(".")


def first_line(error: Exception) -> str:
    """Return the first line of an onnx error."""
    return str(error).strip().split("\n")[0].rstrip(".")


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
