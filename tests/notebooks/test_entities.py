"""The notebook about named entities runs in a fresh kernel, on generated sentences."""

import pytest

from tests.support.notebook_cells import execute, result, value


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("entities", tmp_path_factory.mktemp("checkout"), timeout=120)


def test_f1_rises_during_training(executed):
    first, *_, last = value(executed, "train")
    assert first < 0.3
    assert last > 0.8


def test_sentences_are_shown_with_their_entities(executed):
    gold, predicted = (result(executed, name)["text/html"] for name in ("look", "found"))
    assert gold.count("<br>") == predicted.count("<br>") == 9
    assert gold.count("background:") > 8 + 2


def test_the_random_field_has_learned_which_tags_follow_each_other(executed):
    assert value(executed, "transitions")["I-person"][2:] == "person"
