"""The notebook about estimators runs in a fresh kernel."""

import pytest

from tests.support.notebook_cells import execute, shown, streams, value

pytestmark = pytest.mark.ci
pytest.importorskip("sklearn", reason="needs pip install 'dsinga[estimators]'")


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("estimators", tmp_path_factory.mktemp("checkout"))


def test_no_cell_prints_or_warns(executed):
    assert not streams(executed)


@pytest.mark.parametrize("name", ["score", "best", "compute"])
def test_the_net_classifies_digits(executed, name):
    assert value(executed, name) > 0.95


def test_the_grid_search_finds_that_few_components_are_not_enough(executed):
    assert value(executed, "search")["pca__n_components"] > 4


def test_the_saved_estimator_gives_the_answers_of_the_cluster(executed):
    assert value(executed, "save") is True


def test_objects_are_displayed_as_html(executed):
    assert shown(executed, "text/html", "first client lazy")


def test_figures_are_drawn(executed):
    assert shown(executed, "image/png", "history scores doubt")
