"""Stores the state of all sites in the updater's state of snapshots and checkpoints, and takes it out again.

Params and updater state there are those of group 0. Beside the slots of the updater, a param has "outer.value" and the
slots of the outer optimizer, such as "outer.history", which all groups share. For each further group g it has
"group<g>.value" and the slots of that group, such as "group1.mean".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.cluster.server.served_slice import IN_FLIGHT, OUTER_PARAMS, RESIDUAL, is_outer

OWN_SLOTS = (RESIDUAL, IN_FLIGHT)  # the slots of averaging that each group has for itself


def prefix(group: int) -> str:
    """Return the prefix of the slot names of a group other than 0."""
    return f"group{group}."


def of_group(group: int, values: Mapping[int, np.ndarray], states: Mapping[int, ParamArrays]) -> dict[int, ParamArrays]:
    """Return the values and states of the slices of a further group, by slice id and slot of a checkpoint."""
    return {
        id: {f"{prefix(group)}value": value}
        | {f"{prefix(group)}{slot}": array for slot, array in states.get(id, {}).items() if not _is_shared(slot)}
        for id, value in values.items()
    }


def group_state(
    group: int, values: ParamArrays, state: Mapping[str, ParamArrays] | None
) -> tuple[ParamArrays, Mapping[str, ParamArrays] | None]:
    """Return the values and the state of a server group, by param and slot, out of those of a checkpoint.

    A further group that the checkpoint lacks begins with the outer params and the updater's state of group 0.
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
    """Whether all server groups have the same array of this slot."""
    return is_outer(slot) and slot not in OWN_SLOTS


def _is_first(slot: str) -> bool:
    """Whether a slot is of group 0 alone."""
    head, dot, _ = slot.partition(".")
    return not _is_shared(slot) and not (dot and head.startswith("group") and head[5:].isdecimal())
