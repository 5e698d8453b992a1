"""Traces a module's forward in training and in evaluation, and checks that one net can compute both."""

from __future__ import annotations

import contextlib
import pickle
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dsinga.base.errors import UserError
from dsinga.convert.torch_modules import FUNCTIONS, MODULES
from dsinga.convert.torch_tensors import TracedTensor
from dsinga.convert.torch_tracing import Trace
from dsinga.nn.writing.symbol import Symbol, ancestors

BATCH = 1009  # a number of records that no axis of features is likely to have
SMALL = 3, 5, 7, 11, 31  # few records, for which a forward may do something else
RANKS = re.compile(r"of a tensor with (\d+) axes, not (\d+)$")
REMEDY = "replace what is listed, or leave it out of the forward; help(dsinga.convert) lists what is converted"


def trace_forward(module: torch.nn.Module, inputs: Mapping[str, Symbol]) -> tuple[Trace, list[Any]]:
    """Run a module's forward on symbols; return the trace of its layers, and the results.

    Only dropout may differ in evaluation. Raises UserError for unsupported operations, and for a forward that otherwise
    depends on the phase, the number of records, random numbers, or earlier calls.
    """
    name = type(module).__name__
    with _unchanged(module):
        trace, outputs = _run(module, inputs, True, BATCH)
        layers = described(trace, outputs)
        in_evaluation = described(*_run(module, inputs, False, BATCH))
        if described(*_run(module, inputs, True, BATCH)) != layers:
            raise UserError(
                f"the forward of {name} does not compute the same at each call: it depends on random numbers, or on "
                "what it keeps in Python; leave that out of the forward, or make it an argument"
            )
        if in_evaluation != layers and not _same_by_products(module, inputs):
            raise UserError(
                f"the forward of {name} depends on self.training: {_difference(layers, in_evaluation)}; write what is "
                "the same for both, and apply the rest outside, as to what predict returns (dropout may differ)"
            )
        few = [size for size in SMALL if not any(size in symbol.rows for symbol in inputs.values() if symbol.rows)]
        if not any(_same_for(module, inputs, size, layers) for size in few):
            raise UserError(
                f"the forward of {name} depends on the number of records of a batch: it computes something else for "
                f"{few[0]} than for {BATCH}; write what is the same for any number"
            )
    return trace, outputs


def _run(
    module: torch.nn.Module, inputs: Mapping[str, Symbol], training: bool, batch: int, fused: bool = True
) -> tuple[Trace, list[Any]]:
    """Trace a forward in one phase; return the trace and the results."""
    trace, states = Trace(module, FUNCTIONS, MODULES, training, batch, fused), _random_states()
    result = trace.run(inputs)
    if trace.faults:
        remedy = _remedy_of_batch(inputs, trace.faults) or REMEDY
        raise UserError(f"from_torch has no counterpart for {'; '.join(trace.faults)}: {remedy}")
    if states != _random_states():
        raise UserError(
            f"the forward of {type(module).__name__} draws random numbers{' in training' if training else ''}; leave "
            "them out of it: dropout, whose numbers each layer draws, is what can be random"
        )
    results = list(result.values()) if isinstance(result, dict) else result
    outputs = [x for x in (results if isinstance(results, (list, tuple)) else [results]) if x is not None]
    for tensor in outputs or [None]:
        if not isinstance(tensor, TracedTensor) or not tensor.value or tensor.value.batch_axis is None:
            raise UserError(f"the forward of {type(module).__name__} returns what does not depend on its arguments")
    return trace, outputs


def _remedy_of_batch(inputs: Mapping[str, Symbol], faults: Iterable[str]) -> str:
    """Return the remedy if a layer gets one axis too many, because a given shape begins with the batch; else ""."""
    ranks = [(int(match[1]), int(match[2])) for fault in faults if (match := RANKS.search(fault))]
    for symbol in inputs.values():
        shape = tuple(symbol.rows or ())
        if len(shape) > 1 and (len(shape) + 1, len(shape)) in ranks:
            return f"the shape is that of one record, without the batch; give {shape[1:]}, not {shape}"
    return ""


def _same_by_products(module: torch.nn.Module, inputs: Mapping[str, Symbol]) -> bool:
    """Whether both phases have the same layers if attention is computed by products, so that weights can be dropped."""
    first, second = (described(*_run(module, inputs, training, BATCH, fused=False)) for training in (True, False))
    return first == second


def _same_for(module: torch.nn.Module, inputs: Mapping[str, Symbol], batch: int, layers: list[Any]) -> bool:
    """Whether a forward makes the same layers for another batch size."""
    try:
        return described(*_run(module, inputs, True, batch)) == layers
    except UserError:  # a number in the forward can equal the number of records by chance
        return False


def described(trace: Trace, outputs: list[Any]) -> list[Any]:
    """Describe the layers of a run in order, without dropout, and the outputs, to compare two runs."""
    places: dict[int, int] = {}
    layers: list[Any] = []
    for symbol in ancestors([tensor.value.symbol for tensor in outputs]):
        builder, sources = symbol.builder, [places[id(source.whole)] for source in symbol.sources]
        if builder.kind in ("Dropout", "SpatialDropout2D"):
            places[id(symbol)] = sources[0]
            continue
        remake: Any = builder.remake
        settings = {name: value for name, value in remake.keywords.items() if name not in ("name", "use_global_stats")}
        name = builder.name if id(builder) in trace.with_params else ""
        if builder.kind == "LearnedVector" and (value := trace.constants.get(f"{builder.name}")) is not None:
            name, settings = value.cpu().numpy().tobytes(), {}
        places[id(symbol)] = len(layers)
        layers.append((builder.kind, name, remake.args, settings, sources))
    return [*layers, [(places[id(x.symbol.whole)], x.symbol.part, x.shape[1:]) for x in (y.value for y in outputs)]]


def _difference(first: list[Any], second: list[Any]) -> str:
    pairs = [pair for pair in zip(first[:-1], second[:-1], strict=False) if pair[0] != pair[1]]
    for before, after in pairs[:1]:
        if before[:2] == after[:2]:
            return f"{before[0]} has other settings or sources in evaluation"
        return f"{before[0]} in training is {after[0]} in evaluation"
    if len(first[-1]) != len(second[-1]):
        return f"it returns {len(first[-1])} tensors in training, {len(second[-1])} in evaluation"
    longer, phase = (first, "training") if len(first) > len(second) else (second, "evaluation")
    return f"{longer[-2][0]} is there in {phase} only"


@contextlib.contextmanager
def _unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Undo a forward's changes of Python attributes and random states; raise UserError if buffers changed."""
    attributes = {part: dict(vars(part)) for part in module.modules()}
    buffers = {name: (buffer, buffer.clone()) for name, buffer in module.named_buffers()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for part, values in attributes.items():
            vars(part).clear()
            vars(part).update(values)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        changed = [name for name, (buffer, value) in buffers.items() if not buffer.equal(value)]
        changed = [name for name in changed if not name.endswith("num_batches_tracked")]
        for buffer, value in buffers.values():
            buffer.copy_(value)
    if changed:
        raise UserError(
            f"the forward of {type(module).__name__} changes its buffer {changed[0]}, which a layer does not; leave it "
            "out of the forward"
        )


def _random_states() -> Any:
    """Return a value that changes when PyTorch, Python or numpy draws random numbers."""
    arrays = pickle.dumps(np.random.get_state(legacy=False))
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), arrays
