"""The notebook about named entities, run as a person would, on the sentences that it makes."""

import pytest

from tests.support.notebook_cells import execute, result, value


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("entities", tmp_path_factory.mktemp("checkout"), timeout=120)


def test_entities_are_found_as_training_goes_on(executed):
    first, *_, last = value(executed, "train")
    assert first < 0.3
    assert last > 0.8


def test_sentences_are_shown_with_their_entities(executed):
    gold, found = (result(executed, name)["text/html"] for name in ("look", "found"))
    assert gold.count("<br>") == found.count("<br>") == 9
    assert gold.count("background:") > 8 + 2


def test_the_random_field_has_learned_what_follows_what(executed):
    assert value(executed, "transitions")["I-person"][2:] == "person"
