"""Converts an ONNX graph to a model: each node becomes layers of ``dsinga.nn``, with the file's params."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.folding import fold_constants, folded, needs_layers, room_for
from dsinga.addons.onnx.merged_axes import of_merged
from dsinga.addons.onnx.naming import layer_name
from dsinga.addons.onnx.node_place import MOST_LAYERS, MadeLayers, NodePlace
from dsinga.addons.onnx.operators import NEAREST, OPERATORS
from dsinga.addons.onnx.operators_images import folded_norms
from dsinga.addons.onnx.spelled_out import recognised
from dsinga.addons.onnx.values import LARGEST, Constant, is_same
from dsinga.base.arguments import is_whole, value_text
from dsinga.base.errors import UserError
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import Tensor, batched

_log = logging.getLogger(__name__)

# Two numbers of records that no axis of features is likely to have.
BATCHES = 1009, 1511
# What attributes and shapes that do not fit lead an operator's function to, in a file that is damaged.
UNFIT = ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError
MOST_OPERANDS, CHAINED = 1000, {"Max", "Min"}  # of a node that becomes a layer for each; such nodes
WITH_WEIGHTS = {"Conv", "ConvTranspose", "Dense", "Gemm", "MatMul"}
SHOWN, MOST_LETTERS = 20, 100  # nodes that a message names; letters of the name of one
PAGE = "docs/reference/onnx-operators.md lists the operators that have layers"


def import_graph(
    graph: Any, constants: Mapping[str, Constant], version: int, shapes: Sequence[Any], name: str
) -> nn.Model:
    """Convert a graph (onnx.GraphProto), with its initializers ``constants`` by name, to a model.

    A graph may compute with the number of records, as in a Reshape to (N·T, n). So shapes are computed for two numbers
    of records, and both models must be equal. ``version`` is the opset; ``shapes`` are record shapes that the file
    leaves open.

    Raises UserError, naming all nodes without layers.
    """
    room = room_for(graph, constants)
    left, known = fold_constants(graph, constants, version, room)
    outputs = [output.name for output in graph.output]
    nodes = needed(recognised(left, known, outputs), outputs)
    if len(nodes) > MOST_LAYERS:
        raise UserError(
            f"{name} has {len(nodes):,} nodes, but a net may have {MOST_LAYERS:,} layers; export it in parts"
        )
    walks = [NetWalk(graph, nodes, known, MadeLayers(batch, version, replace(room))) for batch in BATCHES]
    models = [walk.run(shapes, name) for walk in walks]
    first, second = (walk.made.arrays for walk in walks)
    has_same_layers = first.keys() == second.keys() and str(models[0]) == str(models[1])
    if not has_same_layers or not all(is_same(first[key], second[key]) for key in first):
        raise UserError(
            f"{name} computes something else for {BATCHES[0]} records than for {BATCHES[1]}; export it with the "
            "first axis of its inputs named as the batch, and with what it computes the same for each record"
        )
    if count := folded_norms(graph.node):
        text = (
            "%s: the exporter has folded a batch normalisation into %d layer%s, so that its statistics no longer move"
        )
        _log.warning(text, name, count, "s" if count > 1 else "")
    if kept := walks[0].made.kept:
        text = "%s: %s do not train as params of the net: they are masks or bounds, or an exporter has computed them"
        _log.warning(f"{text}, unless with optimize=False or do_constant_folding=False", name, ", ".join(kept))
    models[0].params = walks[0].params(models[0])
    return models[0]


class NetWalk:
    """One walk over a graph's nodes that makes a model's layers, for one number of records."""

    def __init__(self, graph: Any, nodes: Sequence[Any], constants: Mapping[str, Constant], made: MadeLayers):
        self.graph, self.nodes, self.made = graph, nodes, made
        made.operators = OPERATORS
        self.tensors: dict[str, Any] = dict(constants)
        self.faults: dict[str, None] = {}
        # The names of modules with params, which the layers of these have, and no others.
        uses = Counter(name for node in self.nodes for name in {*self._params_of(node)})
        self.shared = {name for name, count in uses.items() if count > 1}
        self.modules = {layer_name(node, names, self.shared) for node in self.nodes if (names := self._params_of(node))}

    def run(self, shapes: Sequence[Any], name: str) -> nn.Model:
        """Turn all nodes into layers; return the model without params."""
        inputs = self._inputs(shapes)
        for node in self.nodes:
            self._convert(node)
        outputs = [self._output(info.name) for info in self.graph.output] if not self.faults else []
        self.tensors.clear()
        self.faults |= {
            f"{name}, which layers take in forms that cannot train as one": None for name in self.made.untied()
        }
        if self.faults:
            more = f"; and {len(self.faults) - SHOWN} more" if len(self.faults) > SHOWN else ""
            faults = "; ".join([*self.faults][:SHOWN]) + more
            raise UserError(f"{name} has what no layer computes: {faults}; {PAGE}")
        return nn.Model(inputs, outputs, name=name)

    def _inputs(self, shapes: Sequence[Any]) -> list[Symbol]:
        """Create the input layers, and set their tensors."""
        infos = [info for info in self.graph.input if info.name not in self.tensors]
        if shapes and len(shapes) != len(infos):
            raise UserError(f"the net takes {len(infos)} inputs, but {len(shapes)} shapes of records are given")
        symbols = []
        for info, shape in zip(infos, shapes or [None] * len(infos), strict=True):
            rows, dtype = self._rows(info, shape)
            name = self.made.unique(info.name)
            symbols.append(nn.Input(rows or (1,), name, data_format="channels_first"))
            self.tensors[info.name] = Tensor(
                NodePlace(self.made, None, name), symbols[-1], (self.made.batch, *rows), 0, dtype
            )
        if not symbols:
            raise UserError("the net has no inputs; export it with those that it takes")
        self.made.source = symbols[0]
        return symbols

    def _rows(self, info: Any, given: Any) -> tuple[tuple[int, ...], np.dtype]:
        from onnx import helper

        tensor, record = info.type.tensor_type, (given,) if is_whole(given, 1) else given
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if not tensor.HasField("shape"):
            if not isinstance(record, (list, tuple)):
                raise UserError(
                    f"the file does not say the shape of the input {info.name}; give that of a record, as in "
                    "nn.load_onnx(path, (3, 224, 224))"
                )
            sizes = [None] * (1 + len(record))
        if not sizes:
            raise UserError(f"the input {info.name!r} has no axis of the batch; export the net with batches of records")
        self.made.given_batch = sizes[0] if self.made.given_batch is None else self.made.given_batch
        rows = sizes[1:]
        if given is not None:
            fits = isinstance(record, (list, tuple)) and len(record) == len(rows)
            if not fits or not all(is_whole(n, 1) and size in (None, n) for n, size in zip(record, rows, strict=True)):
                raise UserError(f"the input {info.name!r} takes records {tuple(rows)}, not {value_text(given)}")
            rows = list(record)
        if None in rows or 0 in rows:
            raise UserError(
                f"the input {info.name!r} has axes of any size, {tuple(rows)}; give the shape of a record, as in "
                f"nn.load_onnx(path, {tuple(size or 32 for size in rows)})"
            )
        return tuple(size for size in rows if size), np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))

    def _convert(self, node: Any) -> None:
        operands = [self.tensors.get(name) if name else None for name in node.input]
        is_stray = any(x is None and name for x, name in zip(operands, node.input, strict=True))
        results: Sequence[Any] = [None] * len(node.output)
        make = OPERATORS.get(node.op_type)
        where = f"{shortened(node.name)} ({node.op_type})" if node.name else node.op_type
        try:
            is_constant = not any(isinstance(x, (Tensor, list)) for x in operands) and not is_stray  # or parts of one
            if is_constant and not needs_layers(node, operands):
                results = folded(node, operands, self.made.version, self.made.room)
            elif make is None:
                nearest = NEAREST.get(node.op_type)
                raise NoLayer(f"(the nearest is {nearest})" if nearest else "")
            elif not is_stray:
                results = self._made(make, node, operands, is_constant)
        except NoLayer as error:
            self.faults[f"{where} {error}{params_text(operands)}".rstrip()] = None
        except UserError as error:
            self.faults[f"{where}: {error}"] = None
        except UNFIT as error:
            self.faults[f"{where} whose attributes or shapes do not fit ({shortened(str(error))})"] = None
        self.tensors |= dict(zip(node.output, results, strict=False))

    def _made(self, make: Any, node: Any, operands: Sequence[Any], is_constant: bool) -> Sequence[Any]:
        params = self._params_of(node)
        base = layer_name(node, params, self.shared)
        place = NodePlace(
            self.made, node, base if params or base not in self.modules else f"{base}.{node.op_type.lower()}"
        )
        if is_constant:
            operands = [place.vector(x) if isinstance(x, Constant) and x.is_param else x for x in operands]
        while operands and operands[-1] is None:
            operands = operands[:-1]
        if len(operands) > MOST_OPERANDS and (
            node.op_type in CHAINED or any(isinstance(x, Constant) for x in operands)
        ):
            raise NoLayer(f"of {len(operands):,} tensors")
        operands = [sparing(place, at, x) if isinstance(x, Constant) else x for at, x in enumerate(operands)]
        has_merged = any(isinstance(x, Tensor) and x.merged for x in operands)
        result = of_merged(place, make, operands) if has_merged else place.call(make, operands)
        results = result if isinstance(result, (list, tuple)) else [result]
        return [batched(place, x) if isinstance(x, Symbol) else x for x in results]

    def _params_of(self, node: Any) -> list[str]:
        given = (self.tensors.get(name) for name in node.input)
        return [x.name for x in given if isinstance(x, Constant) and x.array.dtype.kind == "f" and x.array.size > 1]

    def _output(self, name: str) -> Symbol | None:
        """Return an output's feature; record a fault if it does not belong to records."""
        x = self.tensors.get(name)
        if isinstance(x, Tensor) and x.batch_axis == 0 and not x.merged:
            return x.symbol
        if isinstance(x, Tensor) and x.batch_axis is not None:
            what = "mixes the records of a batch" if x.merged else "moves the batch"
        else:
            what = "is the same for all records"
        self.faults[f"the output {shortened(name)}, which {what}"] = None
        return None

    def params(self, model: nn.Model) -> dict[str, np.ndarray]:
        """Return the params of the model by name."""
        net, params = model.predicting_net(), dict[str, np.ndarray]()
        for node in net.nodes:
            for spec, own in zip(node.layer.params, node.params, strict=True):
                array = self.made.arrays.get((node.layer.name, spec.role))
                if array is not None:  # of flattened images in another shape
                    params[own] = np.ascontiguousarray(array, np.float32).reshape(spec.shape)
        missing = net.params.keys() - params.keys()
        self.made.room.take(4 * sum(math.prod(net.params[own].shape) for own in missing))
        return {**model.params, **params} if missing else params


def sparing(place: NodePlace, position: int, x: Constant) -> Constant:
    """Shrink a constant with repeated numbers, such as an Expand's, to one record.

    Raises NoLayer for large ones, except layers' weights.
    """
    is_weight = place.node.op_type in WITH_WEIGHTS and position == 1 and x.array.dtype == np.float32
    if x.array.size <= LARGEST or 0 not in x.array.strides or is_weight:
        return x
    if x.array.strides[0] == 0 and len(x.array) in (place.batch, place.made.given_batch):
        x = replace(x, array=x.array[:1])
    if x.array.size > LARGEST:
        raise NoLayer(f"of a constant of more than {LARGEST} numbers")
    return x


def shortened(text: str) -> str:
    """Return a text's beginning for a message."""
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} ..."


def params_text(operands: Sequence[Any]) -> str:
    """Name the params that operands are, or are computed from alone, for a message; or ""."""
    names = {name: None for x in operands if isinstance(x, Constant) and x.is_param for name in x.params()}
    symbols = {id(x.symbol): x.symbol for x in operands if isinstance(x, Tensor) and x.batch_axis is None}
    while symbols:
        _, symbol = symbols.popitem()
        if symbol.builder.settings.get("type") != "kLearnedVector":
            symbols |= {id(source): source for source in symbol.sources}
        elif symbol.builder.trainable:
            names[str(symbol.builder.name)] = None
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f" (of the params {', '.join([*names][:SHOWN])}{more})" if names else ""


def needed(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """Drop the nodes that no output needs, and unused outputs; return the others in order."""
    names, kept = set(outputs), []
    for node in reversed(nodes):
        if names.intersection(node.output):
            names.update(node.input)
            own = type(node)()
            own.CopyFrom(node)
            own.output[:] = [name if name in names else "" for name in node.output]
            kept.append(own)
    return kept[::-1]
