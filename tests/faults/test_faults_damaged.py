"""Damaged jobs, stores, checkpoints and workspaces give the right bits or one message.

CI runs these; by hand the runners of this folder take thousands of cases.
"""

import pytest

from tests.support.programs import ROOT, python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(*arguments: str) -> str:
    """Run a runner of this folder, which must find no fault; return what it prints."""
    return python("-m", *arguments, cwd=ROOT, timeout=1700).stdout


@pytest.mark.parametrize("kind", ["jobs", "stores", "checkpoints", "imports", "fields", "onnx"])
def test_damaged_inputs_give_the_right_bits_or_one_message(kind: str) -> None:
    assert "40 cases in" in run("tools.faults", kind, "--count", "40", "--seed", "7")


def test_bombs_are_refused_or_nets_within_bounds() -> None:
    assert "100 cases in" in run("tools.faults", "bombs", "--seconds", "120")


def test_whatever_happens_to_a_workspace() -> None:
    run("tools.faults.workspaces", "--examples", "6", "--steps", "10")
