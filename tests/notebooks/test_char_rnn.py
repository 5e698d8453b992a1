"""The notebook char-rnn runs in a fresh kernel, with fewer steps than in the repository."""

import pytest

from tests.support.notebook_cells import execute, outputs, streams, value

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run with fewer steps."""
    fewer = {"stages": lambda old: "stages = 2, 10, 30"}
    return execute("char-rnn", tmp_path_factory.mktemp("checkout"), environment=["TMPDIR"], changed=fewer)


def test_no_cell_prints_or_warns(executed):
    assert not streams(executed)


def test_it_has_learned_which_characters_are_frequent(executed):
    uniform, learned = value(executed, "last")
    assert learned < uniform - 1


@pytest.mark.parametrize(("name", "count"), [("learn", 3), ("heat", 4)])
def test_samples_are_shown(executed, name, count):
    (table,) = outputs(executed, name)
    assert table.data["text/html"].count("<pre>") == count


def test_the_net_and_the_curve_are_drawn(executed):
    assert outputs(executed, "job")[0].data["text/html"]
    assert outputs(executed, "bits")[0].data["image/png"]
