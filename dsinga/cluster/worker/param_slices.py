"""Cuts whole params into slices for servers and replicas for workers, and joins them again for checkpoints.

Checkpoints have the params and updater state of group 0. In addition, a param has "outer.value" and the outer
optimizer's slots, such as "outer.history", which all groups share. For each further group g it has "group<g>.value" and
that group's slots, such as "group1.mean".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.cluster.server import Slice, SliceSpec
from dsinga.cluster.server.served_slice import IN_FLIGHT, OUTER_PARAMS, RESIDUAL, is_outer
from dsinga.cluster.worker.config import ReplicaState, WorkerConfig
from dsinga.cutting.partitioned import join_params, split_params


def slice_specs(config: WorkerConfig) -> list[SliceSpec]:
    """Return for each slice how it is updated and which workers of a group push its gradients."""
    return [
        SliceSpec(
            slice_,
            config.params[slice_.param].trainable and slice_.param not in config.replicated,
            config.params[slice_.param].lr_scale,
            config.params[slice_.param].wd_scale,
            config.parts[slice_.param].users,
            config.parts[slice_.param].param,
            config.params[slice_.param].trainable and slice_.param in config.replicated,
            config.params[slice_.param].shape,
            0 if slice_.param in config.replicated else config.params[slice_.param].first_step,
            config.topology.threads is not None,
        )
        for slice_ in config.slices
    ]


def sliced_values(
    config: WorkerConfig, values: ParamArrays, state: Mapping[str, ParamArrays] | None
) -> tuple[dict[int, np.ndarray], dict[int, ParamArrays] | None]:
    """Cut whole params, and any updater state by param and slot, into slices for the servers.

    Slices may be views of the same array, but do not overlap.
    """
    parts = split_params(config.parts, values)
    slices = {slice_.id: _slice(parts[slice_.param], slice_) for slice_ in config.slices}
    if state is None:
        return slices, None
    history: dict[int, ParamArrays] = {slice_.id: {} for slice_ in config.slices}
    for slot, wholes in _by_slot(state).items():
        parts_of_slot = {name: part for name, part in config.parts.items() if part.param in wholes}
        parts = split_params(parts_of_slot, wholes)
        for slice_ in config.slices:
            if slice_.param in parts:
                history[slice_.id][slot] = _slice(parts[slice_.param], slice_)
    return slices, history


def replica_values(config: WorkerConfig, values: ParamArrays, state: Mapping[str, ParamArrays] | None) -> ReplicaState:
    """Cut whole params, and the updater's state, into the parts that workers replicate."""
    replicas = {name: part for name, part in config.parts.items() if name in config.replicated}
    parts = split_params(replicas, values)
    if state is None:
        return ReplicaState(parts, None)
    return ReplicaState(
        parts,
        {
            name: {slot: np.ascontiguousarray(part.of(whole)) for slot, whole in state.get(part.param, {}).items()}
            for name, part in replicas.items()
        },
    )


def whole_values(
    config: WorkerConfig,
    slices: Mapping[int, np.ndarray],
    history: Mapping[int, ParamArrays],
    replicas: Sequence[ReplicaState] = (),
) -> tuple[ParamArrays, dict[str, ParamArrays]]:
    """Join slices and replicas to whole params, and the updater's state by param and slot."""
    state: dict[str, ParamArrays] = {}
    replicated = {name: slots for replica in replicas for name, slots in (replica.state or {}).items()}
    for slot in sorted({slot for slots in (*history.values(), *replicated.values()) for slot in slots}):
        sliced = {id: slots[slot] for id, slots in history.items() if slot in slots}
        parts = {name: slots[slot] for name, slots in replicated.items() if slot in slots}
        for name, whole in _joined(config, sliced, parts).items():
            state.setdefault(name, {})[slot] = whole
    return _joined(
        config, slices, {name: value for replica in replicas for name, value in replica.values.items()}
    ), state


def _joined(config: WorkerConfig, slices: Mapping[int, np.ndarray], replicas: Mapping[str, np.ndarray]) -> ParamArrays:
    parts: ParamArrays = {}
    for slice_ in config.slices:
        if slice_.id in slices:
            shape = config.parts[slice_.param].shape
            if slice_.size == math.prod(shape):
                # The server's copy, copied once more if it came through a socket and is read-only.
                parts[slice_.param] = np.require(slices[slice_.id], requirements=["W"]).reshape(shape)
                continue
            if slice_.param not in parts:
                parts[slice_.param] = np.zeros(shape, np.float32)
            parts[slice_.param].reshape(-1)[slice_.start : slice_.stop] = slices[slice_.id]
    parts.update(replicas)
    shapes = {config.parts[name].param: config.params[name].shape for name in parts}
    return join_params(config.parts, parts, shapes)


def _by_slot(state: Mapping[str, ParamArrays]) -> dict[str, ParamArrays]:
    by_slot: dict[str, ParamArrays] = {}
    for name, slots in state.items():
        for slot, array in slots.items():
            by_slot.setdefault(slot, {})[name] = array
    return by_slot


def _slice(array: np.ndarray, slice_: Slice) -> np.ndarray:
    return array.reshape(-1)[slice_.start : slice_.stop]


OWN_SLOTS = (RESIDUAL, IN_FLIGHT)  # the slots of averaging that each group has for itself


def prefix(group: int) -> str:
    """Return the prefix of a checkpoint's slot names for a group other than 0."""
    return f"group{group}."


def of_group(group: int, values: Mapping[int, np.ndarray], states: Mapping[int, ParamArrays]) -> dict[int, ParamArrays]:
    """Name the values and states of a group other than 0 as slots of a checkpoint, by slice id."""
    return {
        id: {f"{prefix(group)}value": value}
        | {f"{prefix(group)}{slot}": array for slot, array in states.get(id, {}).items() if not _is_shared(slot)}
        for id, value in values.items()
    }


def group_state(
    group: int, values: ParamArrays, state: Mapping[str, ParamArrays] | None
) -> tuple[ParamArrays, Mapping[str, ParamArrays] | None]:
    """Read a server group's values and state out of a checkpoint, by param and slot.

    A further group that the checkpoint lacks begins with the outer params and group 0's updater state.
    """
    if state is None:
        return values, None
    start, chosen = prefix(group), {}
    has_own = any(f"{start}value" in slots for slots in state.values())
    for name, slots in state.items():
        if has_own:
            own = {slot.removeprefix(start): array for slot, array in slots.items() if slot.startswith(start)}
        else:
            own = {slot: array for slot, array in slots.items() if _is_first(slot) and (slot != RESIDUAL or not group)}
        chosen[name] = own | {slot: array for slot, array in slots.items() if _is_shared(slot)}
    if has_own:
        own_values = {name: slots.pop("value") for name, slots in chosen.items()}
    else:
        own_values = {name: slots[OUTER_PARAMS] for name, slots in chosen.items() if group and OUTER_PARAMS in slots}
    return {**values, **own_values}, chosen


def _is_shared(slot: str) -> bool:
    return is_outer(slot) and slot not in OWN_SLOTS


def _is_first(slot: str) -> bool:
    head, dot, _ = slot.partition(".")
    return not _is_shared(slot) and not (dot and head.startswith("group") and head[5:].isdecimal())
