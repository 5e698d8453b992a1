"""Whole params, which checkpoints and users have, and slices of their parts, which servers have: one from the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.net.partitioned import join_params, split_params
from dsinga.server import Slice, SliceSpec
from dsinga.worker.config import WorkerConfig
from dsinga.worker.replicated_params import ReplicaState

Arrays = dict[str, np.ndarray]


def slice_specs(config: WorkerConfig) -> list[SliceSpec]:
    """Return how each slice is updated, and which partitions of a worker group push it.

    Of params that partitions keep themselves a server only adds up the gradients.
    """
    return [
        SliceSpec(
            piece,
            config.params[piece.param].trainable and piece.param not in config.replicated,
            config.params[piece.param].lr_scale,
            config.params[piece.param].wd_scale,
            config.parts[piece.param].users,
        )
        for piece in config.slices
    ]


def sliced_values(
    config: WorkerConfig, values: Arrays, state: Mapping[str, Arrays] | None
) -> tuple[dict[int, np.ndarray], dict[int, Arrays] | None]:
    """Cut whole params, and the updater's state by param and slot if there is any, into what servers keep.

    Returns flat values by slice id, and the state by slice id and slot. They may be views of one array, for whoever
    gets them has them to itself.
    """
    parts = split_params(config.parts, values)
    pieces = {piece.id: _piece(parts[piece.param], piece) for piece in config.slices}
    if state is None:
        return pieces, None
    history: dict[int, Arrays] = {piece.id: {} for piece in config.slices}
    for slot, wholes in _by_slot(state).items():
        mine = {name: part for name, part in config.parts.items() if part.param in wholes}
        parts = split_params(mine, wholes)
        for piece in config.slices:
            if piece.param in parts:
                history[piece.id][slot] = _piece(parts[piece.param], piece)
    return pieces, history


def replica_values(config: WorkerConfig, values: Arrays, state: Mapping[str, Arrays] | None) -> ReplicaState:
    """Cut whole params, and the updater's state, into the parts that partitions keep themselves."""
    kept = {name: part for name, part in config.parts.items() if name in config.replicated}
    parts = split_params(kept, values)
    if state is None:
        return ReplicaState(parts, None)
    return ReplicaState(
        parts,
        {
            name: {slot: np.ascontiguousarray(part.of(whole)) for slot, whole in state.get(part.param, {}).items()}
            for name, part in kept.items()
        },
    )


def whole_values(
    config: WorkerConfig,
    pieces: Mapping[int, np.ndarray],
    history: Mapping[int, Arrays],
    kept: Sequence[ReplicaState] = (),
) -> tuple[Arrays, dict[str, Arrays]]:
    """Join what the other two have cut: whole params, and the updater's state by param and slot."""
    state: dict[str, Arrays] = {}
    held = {name: slots for one in kept for name, slots in (one.state or {}).items()}
    for slot in sorted({slot for slots in (*history.values(), *held.values()) for slot in slots}):
        sliced = {id: slots[slot] for id, slots in history.items() if slot in slots}
        parts = {name: slots[slot] for name, slots in held.items() if slot in slots}
        for name, whole in _joined(config, sliced, parts).items():
            state.setdefault(name, {})[slot] = whole
    return _joined(config, pieces, {name: value for one in kept for name, value in one.values.items()}), state


def _joined(config: WorkerConfig, pieces: Mapping[int, np.ndarray], kept: Mapping[str, np.ndarray]) -> Arrays:
    """Return the whole arrays that the slices and the parts are of; the parts are what counts."""
    parts: Arrays = {}
    for piece in config.slices:
        if piece.id in pieces:
            shape = config.parts[piece.param].shape
            if piece.size == math.prod(shape):
                # The copy that its server has made, or once more if that has come through a socket.
                parts[piece.param] = np.require(pieces[piece.id], requirements=["W"]).reshape(shape)
                continue
            if piece.param not in parts:
                parts[piece.param] = np.zeros(shape, np.float32)
            parts[piece.param].reshape(-1)[piece.start : piece.stop] = pieces[piece.id]
    parts.update(kept)
    shapes = {config.parts[name].param: config.params[name].shape for name in parts}
    return join_params(config.parts, parts, shapes)


def _by_slot(state: Mapping[str, Arrays]) -> dict[str, Arrays]:
    found: dict[str, Arrays] = {}
    for name, slots in state.items():
        for slot, array in slots.items():
            found.setdefault(slot, {})[name] = array
    return found


def _piece(array: np.ndarray, piece: Slice) -> np.ndarray:
    return array.reshape(-1)[piece.start : piece.stop]
