"""The notebook about restricted Boltzmann machines runs in a fresh kernel, with fewer steps than in the repository."""

import re

import pytest

from tests.support.notebook_cells import execute, result, shown, value

pytestmark = pytest.mark.ci

STEPS = 320


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run of fewer steps."""
    fewer = {"parameters": lambda old: f"{old}\nSTEPS = {STEPS}"}
    return execute("rbm", tmp_path_factory.mktemp("checkout"), environment=["TMPDIR"], changed=fewer)


def test_the_first_machine_learns(executed):
    errors = value(executed, "train")
    assert len(errors) == 5
    assert errors[-1] < 0.4 * errors[0]


def test_fine_tuning_learns(executed):
    steps, losses = zip(*value(executed, "tune"), strict=True)
    assert (steps[0], steps[-1]) == (0, 4 * STEPS)
    assert losses[-1] < 0.8 * losses[0]


def test_the_code_is_better_than_principal_components(executed):
    errors, same = value(executed, "compare"), value(executed, "neighbours")
    assert errors["auto-encoder"] < errors["principal components"]
    assert same["auto-encoder"] > same["principal components"]


@pytest.mark.parametrize("name", ["first", "stack"])
def test_nets_are_displayed_as_pictures(executed, name):
    assert "<svg" in result(executed, name)["text/html"]


def test_pictures_are_drawn(executed):
    assert shown(executed, "image/png", "filters dream rebuilt code")


def test_the_only_warnings_are_of_biases_left_out(executed):
    for cell in executed.cells:
        text = "".join(output.text for output in cell.get("outputs", ()) if output.output_type == "stream")
        lines = [line for line in text.splitlines() if line]
        assert all(re.match(r"the net has no params b\d1 of .*: they are left out", line) for line in lines), lines
        assert bool(lines) == (cell.id == "stack")
