"""The layers for PyTorch's LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

from dsinga import nn
from dsinga.convert import torch_shapes as shapes
from dsinga.convert.torch_layers import layer_of, layer_type
from dsinga.convert.torch_names import RECURRENT, recurrent_name
from dsinga.convert.torch_tracing import ModulePlace, NotConvertible, tensors_in, traced_in


def recur(place: ModulePlace, module: Any, input: Any, hx: Any = None) -> Any:
    """Return the feature of a stack of recurrent layers, and the last states of its layers and directions.

    The states are y[:, -1] and, of the direction from the last step, y[:, 0]. PyTorch's c is not in the feature.
    """
    kind, size, axis = type(module).__name__, module.hidden_size, int(not module.batch_first)
    begin = tensors_in([hx])
    lacking = {
        "proj_size": getattr(module, "proj_size", 0),
        "nonlinearity='relu'": getattr(module, "nonlinearity", "tanh") != "tanh",
        "initial states that are not zeros": traced_in(begin) or any(x.requires_grad or x.any() for x in begin),
        f"batch_first={module.batch_first} where another axis is the batch": getattr(input, "batch_axis", axis) != axis,
    }
    if wrong := [name for name, lacks in lacking.items() if lacks]:
        raise NotConvertible(f"with {', '.join(wrong)}")
    y, states = shapes.feature(input, 2), []
    settings = {"dim_hidden": size, **({"recurrent_bias": True} if module.bias else {"bias_term": False})}
    settings |= {"bidirectional": True} if module.bidirectional else {}
    for number in range(module.num_layers):
        if number and module.dropout:
            y = nn.Dropout(module.dropout, name=place.name(f".dropout{number}"))(y)
        suffix = f".stacked{number}" if number else ""
        roles = recurrent_roles(f"{place.base}{suffix}", kind == "GRU", module.bias, module.bidirectional)
        y = layer_of(place, module, layer_type(f"k{kind}"), roles, suffix, **settings)(y)
        last = [y[:, -1, :size], y[:, 0, size:]] if module.bidirectional else [y[:, -1]]
        for state in last:
            state.builder.name = place.name(".last")
            states.append(nn.Reshape([1, size], name=place.name(".state"))(state))
    joined = states[0] if len(states) == 1 else nn.Concatenate(axis=1, name=place.name(".states"))(states)
    h = shapes.moved(input, joined, 1)
    if kind != "LSTM":
        return shapes.moved(input, y, axis), h
    c = shapes.moved(input, joined, 1)
    c.fault = f"on the last cell states of {place.base} ({kind})"
    return shapes.moved(input, y, axis), (h, c)


def recurrent_roles(layer: str, is_gru: bool, has_bias: bool, bidirectional: bool) -> dict[str, str]:
    """Return the names of the params of a layer of torch.nn.LSTM, GRU or RNN by those of ours, in order."""
    kinds = [*RECURRENT][: 4 if has_bias else 2]
    gates = ("z_", "r_", "c_") if is_gru else ("",)
    directions = ("", "back_") if bidirectional else ("",)
    roles = [f"{back}{gate}{kind}" for back in directions for kind in kinds for gate in gates]
    return {role: recurrent_name(layer, role)[1] for role in roles}
