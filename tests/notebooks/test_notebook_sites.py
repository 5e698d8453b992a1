"""The notebook about sites runs in a fresh kernel."""

import pytest

from tests.support.notebook_cells import execute, shown, streams, value

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    return execute("sites", tmp_path_factory.mktemp("checkout"), environment=["TMPDIR"])


def test_sites_know_the_digits_of_both_and_one_alone_does_not(executed):
    alone, together = value(executed, "alone")
    assert alone < 0.75
    assert together > 0.85


def test_pictures_are_drawn(executed):
    assert shown(executed, "image/svg+xml", "picture rare")
    assert shown(executed, "image/png", "train")


def test_fewer_outer_steps_send_less_and_the_bits_are_the_same(executed):
    sent = value(executed, "bytes")
    assert sent["H = 1"] == pytest.approx(10 * sent["H = 10"], rel=0.01)
    assert value(executed, "bits") is True


def test_no_cell_prints_or_warns(executed):
    assert not streams(executed)
