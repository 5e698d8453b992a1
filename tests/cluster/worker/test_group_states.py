"""The state of sites in a checkpoint: each gets its own back, a new one begins with the outer params."""

import numpy as np

from dsinga.cluster.worker.param_slices import group_state, of_group
from dsinga.loop.initial_state import updater_state


def number(value):
    return np.full(2, value, np.float32)


def test_each_site_gets_its_own_state_and_a_new_one_the_outer_params():
    first = {"mean": number(1), "outer.value": number(2), "outer.history": number(3), "outer.residual": number(4)}
    first["outer.in_flight"] = number(5)
    second = {0: {"mean": number(11), "outer.value": number(2), "outer.residual": number(14)}}
    second[0]["outer.in_flight"] = number(15)
    state = {"w": first | of_group(1, {0: number(10)}, second)[0]}
    expected = {
        0: (0, {"mean": 1, "outer.value": 2, "outer.history": 3, "outer.residual": 4, "outer.in_flight": 5}),
        1: (10, {"mean": 11, "outer.value": 2, "outer.history": 3, "outer.residual": 14, "outer.in_flight": 15}),
        # the checkpoint has two sites; what group 0 has sent counts for a third one, too
        2: (2, {"mean": 1, "outer.value": 2, "outer.history": 3, "outer.in_flight": 5}),
    }
    for group, (value, slots) in expected.items():
        values, chosen = group_state(group, {"w": number(0)}, state)
        assert values["w"][0] == value
        assert {slot: array[0] for slot, array in chosen["w"].items()} == slots
    assert updater_state(state)["w"].keys() == {"mean"}
    assert group_state(1, {"w": number(5)}, None)[0]["w"][0] == 5
