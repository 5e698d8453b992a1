"""Whole params, which checkpoints and users have, and slices of their parts, which servers have: one from the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.cluster.replica import Held
from dsinga.cluster.setup import Setup
from dsinga.net.partitioned import cut_values, join_values
from dsinga.server import Slice, SliceSpec

Arrays = dict[str, np.ndarray]


def slice_specs(setup: Setup) -> list[SliceSpec]:
    """Return how each slice is updated, and which partitions of a worker group push it.

    Of params that partitions keep themselves a server only adds up the gradients.
    """
    return [
        SliceSpec(
            piece,
            setup.params[piece.param].trainable and piece.param not in setup.kept,
            setup.params[piece.param].lr_scale,
            setup.params[piece.param].wd_scale,
            setup.parts[piece.param].users,
        )
        for piece in setup.slices
    ]


def sliced_values(
    setup: Setup, values: Arrays, state: Mapping[str, Arrays] | None
) -> tuple[dict[int, np.ndarray], dict[int, Arrays] | None]:
    """Cut whole params, and the updater's state by param and slot if there is any, into what servers keep.

    Returns flat values by slice id, and the state by slice id and slot. They may be views of one array, for whoever
    gets them has them to itself.
    """
    parts = cut_values(setup.parts, values)
    pieces = {piece.id: _piece(parts[piece.param], piece) for piece in setup.slices}
    if state is None:
        return pieces, None
    history: dict[int, Arrays] = {piece.id: {} for piece in setup.slices}
    for slot, wholes in _by_slot(state).items():
        mine = {name: part for name, part in setup.parts.items() if part.param in wholes}
        parts = cut_values(mine, wholes)
        for piece in setup.slices:
            if piece.param in parts:
                history[piece.id][slot] = _piece(parts[piece.param], piece)
    return pieces, history


def held_values(setup: Setup, values: Arrays, state: Mapping[str, Arrays] | None) -> Held:
    """Cut whole params, and the updater's state, into the parts that partitions keep themselves."""
    kept = {name: part for name, part in setup.parts.items() if name in setup.kept}
    parts = cut_values(kept, values)
    if state is None:
        return Held(parts, None)
    return Held(
        parts,
        {
            name: {slot: np.ascontiguousarray(part.of(whole)) for slot, whole in state.get(part.param, {}).items()}
            for name, part in kept.items()
        },
    )


def whole_values(
    setup: Setup, pieces: Mapping[int, np.ndarray], history: Mapping[int, Arrays], kept: Sequence[Held] = ()
) -> tuple[Arrays, dict[str, Arrays]]:
    """Join what the other two have cut: whole params, and the updater's state by param and slot."""
    state: dict[str, Arrays] = {}
    held = {name: slots for one in kept for name, slots in (one.state or {}).items()}
    for slot in sorted({slot for slots in (*history.values(), *held.values()) for slot in slots}):
        sliced = {id: slots[slot] for id, slots in history.items() if slot in slots}
        parts = {name: slots[slot] for name, slots in held.items() if slot in slots}
        for name, whole in _joined(setup, sliced, parts).items():
            state.setdefault(name, {})[slot] = whole
    return _joined(setup, pieces, {name: value for one in kept for name, value in one.values.items()}), state


def _joined(setup: Setup, pieces: Mapping[int, np.ndarray], kept: Mapping[str, np.ndarray]) -> Arrays:
    """Return the whole arrays that the slices and the parts are of; the parts are what counts."""
    parts: Arrays = {}
    for piece in setup.slices:
        if piece.id in pieces:
            shape = setup.parts[piece.param].shape
            if piece.size == math.prod(shape):
                # The copy that its server has made, or once more if that has come through a socket.
                parts[piece.param] = np.require(pieces[piece.id], requirements=["W"]).reshape(shape)
                continue
            if piece.param not in parts:
                parts[piece.param] = np.zeros(shape, np.float32)
            parts[piece.param].reshape(-1)[piece.start : piece.stop] = pieces[piece.id]
    parts.update(kept)
    shapes = {setup.parts[name].param: setup.params[name].shape for name in parts}
    return join_values(setup.parts, parts, shapes)


def _by_slot(state: Mapping[str, Arrays]) -> dict[str, Arrays]:
    found: dict[str, Arrays] = {}
    for name, slots in state.items():
        for slot, array in slots.items():
            found.setdefault(slot, {})[name] = array
    return found


def _piece(array: np.ndarray, piece: Slice) -> np.ndarray:
    return array.reshape(-1)[piece.start : piece.stop]
