"""The notebook about reinforcement learning runs in a fresh kernel, with few steps."""

from typing import Any

import pytest

from tests.support.notebook_cells import execute

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook after a run."""
    pytest.importorskip("pygame")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSINGA_STEPS", "4096")
        return execute("rl", tmp_path_factory.mktemp("checkout"))


def test_no_cell_warns_and_all_pictures_are_drawn(executed: Any) -> None:
    outputs: list[Any] = [output for cell in executed.cells for output in cell.get("outputs", ())]
    assert not [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    assert sum("image/png" in output.get("data", ()) for output in outputs) >= 3


def test_rollouts_are_stale_within_bounds(executed: Any) -> None:
    (cell,) = (cell for cell in executed.cells if cell.id == "staleness")
    age = float(cell.outputs[0].text.split()[2])
    assert 0 <= age <= 8
