"""The layers for PyTorch's LSTM, GRU and RNN."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from dsinga import nn
from dsinga.convert import torch_operations as operations
from dsinga.convert import torch_shapes as shapes
from dsinga.convert.torch_layers import layer_of, layer_type
from dsinga.convert.torch_names import RECURRENT, recurrent_name
from dsinga.convert.torch_tensors import NotConvertible, TracedTensor, tensors_in
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing.symbol import Symbol


def recur(place: ModulePlace, module: Any, input: Any, hx: Any = None) -> Any:
    """Return the feature of a stack of recurrent layers, and the last states of its layers and directions.

    The states h are y[:, -1] and, of the direction from the last step, y[:, 0]. Those of an LSTM that are handed on as
    they are, and c, are the feature of a layer with ``last_state``, which shares the params. Layers are made where
    their features are first used.
    """
    kind, size, axis = type(module).__name__, module.hidden_size, int(not module.batch_first)
    begin, count = tensors_in([hx]), module.num_layers * (1 + module.bidirectional)
    is_zero = not any(isinstance(x, TracedTensor) for x in begin)
    lacking = {
        "proj_size": getattr(module, "proj_size", 0),
        "nonlinearity='relu'": getattr(module, "nonlinearity", "tanh") != "tanh",
        "initial states of both directions": module.bidirectional and not is_zero,
        "initial states that are constants other than zeros": any(
            x.any() for x in begin if not isinstance(x, TracedTensor)
        ),
        "initial states of another shape": any(x.dim() != 3 or len(x) != count or x.shape[2] != size for x in begin),
        "initial states whose axis 1 is not the batch": any(getattr(x, "batch_axis", 1) != 1 for x in begin),
        f"batch_first={module.batch_first} where another axis is the batch": getattr(input, "batch_axis", axis) != axis,
    }
    if wrong := [name for name, lacks in lacking.items() if lacks]:
        raise NotConvertible(f"with {', '.join(wrong)}")
    begins = ModulePlace(place.trace, f"{place.base}.begin")
    starts = [] if is_zero else [first_state(begins, begin, number) for number in range(module.num_layers)]
    x, settings = shapes.feature(input, 2), {"dim_hidden": size}
    settings |= {"recurrent_bias": True} if module.bias else {"bias_term": False}
    settings |= {"bidirectional": True} if module.bidirectional else {}
    settings |= {"initial_state": True} if starts else {}
    drops = operations.drops(place, module.dropout, module.training)

    @functools.cache
    def layer(number: int, **more: Any) -> Symbol:
        """Return the feature of a layer of the stack."""
        y = layer(number - 1) if number else x
        if number and drops:
            y = nn.Dropout(module.dropout, name=place.name(f".dropout{number}"))(y)
        end = f".stacked{number}" if number else ""
        roles = recurrent_roles(f"{place.base}{end}", kind == "GRU", module.bias, module.bidirectional)
        make = layer_of(place, module, layer_type(f"k{kind}"), roles, end, f"{bool(starts)}{more}", **settings, **more)
        symbol: Symbol = make([y, *starts[number : number + 1]])
        return symbol

    last = functools.partial(layer, last_state=True)

    def states() -> Symbol:
        """Return the states h of layers and directions, (B, L, H)."""
        parts = []
        for number in range(module.num_layers):
            y = layer(number)
            for state in [y[:, -1, :size], y[:, 0, size:]] if module.bidirectional else [y[:, -1]]:
                state.builder.name = place.name(".last")
                parts.append(nn.Reshape([1, size], name=place.name(".state"))(state))
        return joined(place, parts)

    def cells() -> Symbol:
        """Return the states c of layers, (B, L, H)."""
        parts = [last(number)[:, size:] for number in range(module.num_layers)]
        return joined(place, [nn.Reshape([1, size], name=place.name(".cell"))(part) for part in parts])

    trace, batch = place.trace, place.trace.batch
    steps, width = shapes.rows_of(x)[0], size * (1 + module.bidirectional)
    shape = (batch, steps, width) if axis == 0 else (steps, batch, width)
    y = TracedTensor(trace, None, shape, batch_axis=axis, make=functools.partial(layer, module.num_layers - 1))
    makes = states, None if module.bidirectional else cells
    h, c = (TracedTensor(trace, None, (count, batch, size), batch_axis=1, make=make) for make in makes)
    if kind != "LSTM":
        return y, h
    if module.bidirectional:
        c.fault = f"on the last cell states of both directions of {place.base} (LSTM)"
    else:
        h.last, c.last = (last, "h"), (last, "c")
    return y, (h, c)


def first_state(place: ModulePlace, begin: Sequence[Any], number: int) -> Symbol:
    """Return the state before the first step of a layer: h, of an LSTM h and c side by side."""
    lasts: list[Any] = [getattr(x, "last", (None, "")) for x in (begin[0], begin[-1])]
    (maker, part), (other, cell) = lasts
    if maker is not None and maker is other and (part, cell) == ("h", "c") and not any(x.is_made for x in begin):
        symbol: Symbol = maker(number)
        return symbol
    wrapped = place.trace.wrapped
    traced = next(x for x in begin if isinstance(x, TracedTensor))
    parts = []
    for x in begin:
        part = wrapped(shapes.getitem(place, x if isinstance(x, TracedTensor) else traced, (number,)))
        parts.append(part.symbol if isinstance(x, TracedTensor) else part.symbol * 0.0)
    return parts[0] if len(parts) == 1 else nn.Concatenate(axis=1, name=place.name())(parts)


def joined(place: ModulePlace, parts: Sequence[Symbol]) -> Symbol:
    """Return states of layers and directions, (B, 1, H) each, as (B, L, H)."""
    symbol: Symbol = parts[0] if len(parts) == 1 else nn.Concatenate(axis=1, name=place.name(".states"))(parts)
    return symbol


def recurrent_roles(layer: str, is_gru: bool, has_bias: bool, bidirectional: bool) -> dict[str, str]:
    """Return the names of the params of a layer of torch.nn.LSTM, GRU or RNN by those of ours, in order."""
    kinds = [*RECURRENT][: 4 if has_bias else 2]
    gates = ("z_", "r_", "c_") if is_gru else ("",)
    directions = ("", "back_") if bidirectional else ("",)
    roles = [f"{back}{gate}{kind}" for back in directions for kind in kinds for gate in gates]
    return {role: recurrent_name(layer, role)[1] for role in roles}
