"""The notebook about tables runs in a fresh kernel."""

import pytest

from tests.support.notebook_cells import execute, shown, streams, value

pytestmark = pytest.mark.ci
pytest.importorskip("sklearn", reason="needs pip install 'dsinga[estimators]'")


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("tables", tmp_path_factory.mktemp("checkout"))


def test_the_ensemble_knows_most_flights_and_keeps_its_answers(executed):
    assert value(executed, "score")["accuracy"] > 0.75
    assert value(executed, "save") is True


def test_figures_are_drawn_and_nothing_else_is_printed(executed):
    assert shown(executed, "image/png", "reliability importance dependence")
    assert shown(executed, "text/html", "make columns")
    assert not streams(executed)
