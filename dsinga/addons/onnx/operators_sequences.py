"""Converts ONNX's LSTM, GRU and RNN, and the operators with which exporters spell out where sequences end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_shapes import gather
from dsinga.addons.onnx.values import Constant, integers
from dsinga.nn.writing.recurrent import first_state, last_states, stacked_states
from dsinga.nn.writing.reshaping import NoLayer, refuse
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import Tensor, batched, joined

# The gates of each operator in dsinga's order, as numbers of ONNX's gates: i o f c, and z r h.
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
NAMES = {"Sigmoid": "SIGMOID", "Tanh": "TANH", "Relu": "RELU"}
FIELDS = ("gate_activation", "candidate_activation", "cell_activation")


@dataclass(frozen=True)
class RecurrentNode:
    """A recurrent operator's node: its params, first states and sequence lengths.

    Attributes:
        suffix: the end of its layers' names, ".stacked1" for a stack's second layer.
        params: of each direction, by the layer's roles.
        starts: each direction's state before the first step, (B, S), None for zeros.
        layout: 1 if the batch is the first axis, else 0.
        lengths: the layer that marks the ends of sequences, or None.
    """

    place: NodePlace
    suffix: str
    params: list[dict[str, tuple[Constant, np.ndarray]]]
    settings: dict[str, Any]
    starts: list[Tensor | None]
    layout: int
    lengths: Symbol | None = None

    @property
    def size(self) -> int:
        """The width of the state h."""
        return int(self.settings["dim_hidden"])

    def layer(self, directions: list[int], x: Tensor, **more: Any) -> Tensor:
        """Create the layer of these directions; the second one alone goes backwards."""
        params = {f"{'back_' if at else ''}{role}": x for at, d in enumerate(directions) for role, x in
                  self.params[d].items()}  # fmt: skip
        start = self.starts[directions[0]] if len(directions) == 1 else None
        settings = {**self.settings, **more}
        settings |= {"bidirectional": True} if len(directions) > 1 else {}
        settings |= {"initial_state": True} if start is not None else {}
        layer = self.place.layer(f"k{self.place.node.op_type}", params, self.suffix, **settings)
        sources = [x.symbol, self.lengths, None if start is None else start.symbol]
        return batched(self.place, layer([source for source in sources if source is not None]))

    def over_steps(self, x: Tensor, is_reverse: bool) -> Tensor:
        """Compute the states of all steps, (B, T, D·H)."""
        if len(self.params) == 1:
            return self.layer([0], x[:, ::-1])[:, ::-1] if is_reverse else self.layer([0], x)
        if not any(start is not None for start in self.starts):
            return self.layer([0, 1], x)
        return joined([self.layer([0], x), self.layer([1], x[:, ::-1])[:, ::-1]], 2)

    def results(self, x: Tensor, is_reverse: bool) -> list[Tensor | None]:
        """Compute all steps' states and the last states h and c, None for unused ones."""
        place, size, directions = self.place, self.size, range(len(self.params))
        takes_all, takes_last, takes_cells = [*map(bool, place.node.output), False, False][:3]
        last = [x[:, ::-1] if is_reverse or d else x for d in directions] if takes_cells else []
        cells = [self.layer([d], y, last_state=True) for d, y in enumerate(last)]
        results: list[Tensor | None] = [None, None, None]
        states = [both[:, :size] for both in cells] if takes_last else []
        if takes_all or not takes_cells:
            y = self.over_steps(x, is_reverse)
            states = [] if not takes_last else [y[:, 0]] if is_reverse else last_states(y, size)
            y = y.reshape((*y.shape[:2], len(directions), size), ".directions")
            results[0] = y if self.layout else y.transpose([1, 2, 0, 3])
        for at, parts in ((1, states), (2, [both[:, size:] for both in cells])):
            if parts:
                results[at] = stacked_states(parts).with_batch(0 if self.layout else 1)
        if results[1] and results[2] and len(directions) == 1:
            place.made.last_states[id(results[2].symbol)] = results[1].symbol, cells[0]
        return results


def recurrent(
    place: NodePlace, x: Tensor, weight: Any, state_weight: Any, bias: Any = None, lengths: Any = None,
    begin: Any = None, begin_cell: Any = None, peephole: Any = None, *, direction: str = "forward", layout: int = 0,
    activations: Any = None, activation_alpha: Any = None, activation_beta: Any = None, clip: float = 0.0,
    input_forget: int = 0, linear_before_reset: int = 0,
) -> list[Tensor | None]:  # fmt: skip
    """Convert LSTM, GRU or RNN; return all steps' states, and the last states h and c."""
    kind, weights, batch = place.node.op_type, (weight, state_weight, bias), 0 if layout else 1
    if not isinstance(x, Tensor) or x.rank != 3 or x.batch_axis != batch:
        raise NoLayer(f"of a tensor whose axis {batch} is not the batch")
    refuse(
        {
            "weights that layers compute": any(w is not None and not isinstance(w, Constant) for w in weights),
            "more than two directions": any(isinstance(w, Constant) and len(w.array) > 2 for w in weights),
            "lengths of sequences": isinstance(lengths, Constant)
            and {*integers(lengths, "lengths")} != {x.shape[1 - batch]},
            "peepholes": peephole is not None and (not isinstance(peephole, Constant) or bool(peephole.array.any())),
            "clip": clip,
            "input_forget": input_forget,
            "linear_before_reset 0, which resets the state before its product (set it to 1)": kind == "GRU"
            and not linear_before_reset,
        }
    )
    directions = len(weight.array)
    count = place.made.stacks[place.base] = place.made.stacks.get(place.base, -1) + 1
    if activation_alpha or activation_beta:
        raise NoLayer("with activations that have numbers of their own")
    settings = {"dim_hidden": int(state_weight.array.shape[-1]), **activations_of(kind, activations, directions)}
    if bias is None:
        settings["bias_term"] = False
    elif bias.made is not None or bias.array.reshape(directions, 2, -1)[:, 1].any():
        settings["recurrent_bias"] = True
    params = [params_of(place, d, weights, settings) for d in range(directions)]
    states = [begin, begin_cell] if kind == "LSTM" else [begin]
    starts = [start_of(place, states, d, batch) for d in range(directions)]
    ends, is_reverse = lengths_of(place, lengths), direction == "reverse"
    backward_apart = is_reverse or (directions == 2 and any(start is not None for start in starts))
    if ends is not None and (backward_apart or any(place.node.output[1:])):
        raise NoLayer("with lengths of sequences and last states, or one direction from the last step")
    node = RecurrentNode(place, f".stacked{count}" if count else "", params, settings, starts, layout, ends)
    return node.results(x.with_batch(0), is_reverse)


def lengths_of(place: NodePlace, lengths: Any) -> Symbol | None:
    """Return the layer that marks the ends of sequences, from their number of codes >= 0; or None."""
    if not isinstance(lengths, Tensor):
        return None
    symbol = lengths.symbol
    while symbol.builder.kind == "Reshape" or symbol.builder.settings.get("pool") == "SUM":
        (symbol,) = symbol.sources
    settings = symbol.builder.settings
    if settings.get("operator") != "GREATER_EQUAL" or settings.get("number") or len(symbol.sources) != 1:
        raise NoLayer("with lengths of sequences that are not the number of their codes from 0 on")
    codes = place.made.ordered.get(id(symbol.sources[0]))
    return nn.SequenceLength(name=place.name(".lengths"))(symbol.sources[0]) if codes is None else codes


def activations_of(kind: str, activations: Any, directions: int) -> dict[str, str]:
    """Return the settings of activations that differ from the defaults."""
    defaults = ACTIVATIONS[kind]
    given = activations or defaults * directions
    own = given[: len(defaults)]
    if own * directions != given or not {*own} <= {*NAMES} or (kind == "RNN" and own != defaults):
        raise NoLayer(f"with the activations {', '.join(given)}")
    pairs = zip(FIELDS, own, defaults, strict=False)
    return {field: NAMES[name] for field, name, default in pairs if name != default}


def params_of(
    place: NodePlace, direction: int, weights: tuple[Constant, Constant, Any], settings: Mapping[str, Any]
) -> dict[str, tuple[Constant, np.ndarray]]:
    """Return the params of a direction by the layer's roles, in order."""
    kind, (weight, state_weight, bias) = place.node.op_type, weights
    parts = {"hx": (weight, weight.array[direction]), "hh": (state_weight, state_weight.array[direction])}
    if bias is not None:
        halves = bias.array[direction].reshape(2, -1)
        parts["b"] = bias, halves[0]
        if settings.get("recurrent_bias"):
            parts["hb"] = bias, halves[1]
    params = {}
    for role, (constant, array) in parts.items():
        source = place.made.label(constant)
        place.made.use(constant, source)
        gates = array.reshape(len(GATES[kind]), -1, *array.shape[1:])
        ours = {f"{gate}_{role}": gates[at] for gate, at in zip("zrc", GATES[kind], strict=False)}
        if kind != "GRU":
            ours = {role: gates[list(GATES[kind])].reshape(array.shape)}
        for name, own in ours.items():  # each param is one of its own, whatever else has the same numbers
            label = f"{source} {direction} {name}" if source else ""
            params[name] = Constant(own, label), np.ascontiguousarray(own, np.float32)
    return params


def start_of(place: NodePlace, begin: list[Any], direction: int, batch: int) -> Tensor | None:
    """Return a direction's state before the first step, (B, H), for an LSTM h and c side by side, or None."""
    states = [None if isinstance(x, Constant) and not x.is_param and not x.array.any() else x for x in begin]
    if all(x is None for x in states):
        return None
    symbols = [x.symbol if isinstance(x, Tensor) else None for x in states]
    known = place.made.last_states.get(id(symbols[-1]))
    if known is not None and known[0] is symbols[0]:
        return known[1]

    def state(x: Any) -> Tensor:
        x = place.vector(place.same_for_records(x, batch - 3)) if isinstance(x, Constant) else x
        if x.rank != 3 or x.batch_axis not in (None, batch):
            raise NoLayer("with initial states of another shape")
        if x.batch_axis is None:
            return x.reshape((x.shape[1 - batch], x.shape[2]), ".begin").part(0, direction)
        return x.with_batch(0).part(1, direction)

    return first_state([None if x is None else state(x) for x in states])


def gather_nd(place: NodePlace, x: Tensor, indices: Any, batch_dims: int = 0) -> Tensor:
    """Convert GatherND: parts of a param by constant indices, or sequences' last steps."""
    if isinstance(indices, Tensor) and batch_dims == 1 and x.rank == 3 and x.batch_axis == indices.batch_axis == 0:
        if (lengths := numbered(numbered(indices.symbol, "SUBTRACT", 1.0), "MAXIMUM", 1.0)) is not None:
            ends = lengths_of(place, indices.of(lengths))
            return batched(place, nn.Layer("kPooling1D", pool="LAST", name=place.name())([x.symbol, ends]))
    if not isinstance(indices, Constant) or x.batch_axis is not None or batch_dims:
        raise NoLayer("by indices, or of parts, that depend on a batch")
    *_, count = indices.array.shape
    items = [axis % size for axis, size in zip(np.moveaxis(indices.array, -1, 0), x.shape, strict=False)]
    whole = x.reshape((math.prod(x.shape[:count]), *x.shape[count:]))
    return gather(place, whole, Constant(np.ravel_multi_index(items, x.shape[:count])))


def numbered(symbol: Symbol | None, operator: str, number: float) -> Symbol | None:
    """Return the source of ``symbol`` if it is a kArithmetic with this operator and number; else None."""
    while symbol is not None and symbol.builder.kind in ("Reshape", "Flatten"):
        (symbol,) = symbol.sources
    settings = symbol.builder.settings if symbol is not None else {}
    return (
        symbol.sources[0]
        if symbol and (settings.get("operator"), settings.get("number")) == (operator, number)
        else None
    )


def smallest(place: NodePlace, keys: Tensor, count: Any, largest: int = 1) -> list[Tensor | None]:
    """Recognise the order that moves codes >= 0 to the front, as kSequenceLength does."""
    steps = float(keys.shape[-1])
    late = keys.symbol.sources[0] if len(keys.symbol.sources) == 2 else None
    codes = numbered(numbered(late, "MULTIPLY", steps), "GREATER", 0.0)
    if codes is None or largest or integers(count, "count") != [steps]:
        raise NoLayer("of other than the codes of steps before the ends of sequences")
    place.made.orders[id(keys.symbol)] = codes
    return [None, keys]


def in_order(place: NodePlace, x: Tensor, order: Any) -> Tensor:
    """Move the codes >= 0 of each sequence to the front, by a kSequenceLength."""
    if not isinstance(order, Tensor) or place.made.orders.get(id(order.symbol)) is not x.symbol:
        raise NoLayer("by indices that depend on a batch")
    place.made.ordered[id(x.symbol)] = nn.SequenceLength(anywhere=True, name=place.name())(x.symbol)
    return x.of(place.made.ordered[id(x.symbol)])


SEQUENCES: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    **{"GatherND": gather_nd, "TopK": smallest, "GatherElements": in_order},
}
