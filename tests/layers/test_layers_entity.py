"""kEntityF1 against entities found by hand and by a plain loop over the words."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsinga.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers import Layer, Output
from dsinga.layers.entity import entity_metrics
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
from tests.support.layer_cases import context

NAMES = ("O", "B-x", "I-x", "B-y", "I-y")
CTX = context(BACKENDS["numpy"]())


def coded(*sentences: str) -> np.ndarray:
    sentence_tags = [sentence.split() for sentence in sentences]
    longest = max(map(len, sentence_tags))
    return np.array([[NAMES.index(tag) for tag in tags] + [-1] * (longest - len(tags)) for tags in sentence_tags])


def layer(*shape: int) -> Layer:
    return lookup("layer", "kEntityF1")(
        LayerConf(name="f1", type="kEntityF1", srclayers=["crf", "data"]), [shape, (5,)]
    )


def run(tags: np.ndarray, gold: np.ndarray) -> Output:
    cls = lookup("layer", "kEntityF1")
    conf = LayerConf(name="f1", type="kEntityF1", srclayers=["crf", "data"])
    return cls(conf, [tags.shape, gold.shape]).compute_feature([], [tags, gold], CTX)


@pytest.mark.parametrize(
    ("tags", "right", "count"),
    [
        ("O B-x I-x O B-y", 2, 2),
        ("O B-x O O B-y", 1, 2),  # too short
        ("O B-x I-x I-x B-y", 1, 2),  # too long
        ("O B-y I-y O B-y", 1, 2),  # another type
        ("O B-x B-x O B-y", 1, 3),  # two of them
        ("O I-x I-x O I-y", 2, 2),  # begun by I-
        ("O B-x I-y O O", 0, 2),
        ("O O O O O", 0, 0),
    ],
)
def test_an_entity_is_found_if_both_ends_and_the_type_are_right(tags: str, right: int, count: int):
    metrics = run(coded(tags), coded("O B-x I-x O B-y")).metrics
    assert metrics == {"precision": (right, count), "recall": (right, 2), "f1": (2 * right, count + 2)}


def test_tags_after_the_end_do_not_count():
    gold = coded("O B-x", "B-x I-x O")
    output = run(np.array([[0, 1, 2], [1, 2, 1]]), gold)
    assert output.metrics["precision"] == (2, 3)
    assert output.feature.tolist() == [[0, 1, -1], [1, 2, 1]]


def test_the_highest_score_is_the_tag():
    gold = coded("O B-x I-x O")
    output = run(np.eye(5, dtype=np.float32)[gold], gold)
    assert output.feature.tolist() == gold.tolist()
    assert output.metrics["f1"] == (2, 2)


def spans(tags: list[int]) -> set[tuple[int, int, str]]:
    """Return the entities of a sentence, (first word, last word, type), found word by word."""
    entities, begin = [], None
    for at, name in enumerate([*(NAMES[tag] if tag >= 0 else "O" for tag in tags), "O"]):
        if begin is not None and not (name.startswith("I") and name[2:] == begin[1]):
            entities.append((begin[0], at - 1, begin[1]))
            begin = None
        if begin is None and re.match("[BI]", name):
            begin = (at, name[2:])
    return set(entities)


tag_rows = arrays(int, (3, 6), elements=st.integers(0, 4))


@given(tags=tag_rows, gold=tag_rows, lengths=arrays(int, 3, elements=st.integers(1, 6)))
def test_the_figures_are_those_of_a_loop_over_the_words(tags, gold, lengths):
    beyond = np.arange(6) >= lengths[:, None]
    tags, gold = np.where(beyond, -1, tags), np.where(beyond, -1, gold)
    pairs = [(spans(predicted), spans(true)) for predicted, true in zip(tags.tolist(), gold.tolist(), strict=True)]
    right = sum(len(predicted & true) for predicted, true in pairs)
    count, gold_count = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    expected = {"precision": (right, count), "recall": (right, gold_count), "f1": (2 * right, count + gold_count)}
    assert entity_metrics(tags, gold) == expected


def test_other_sources_and_labels_are_refused():
    with pytest.raises(UserError, match=r"layer 'f1': takes tags .* 'crf' gives 5"):
        layer(5)
    with pytest.raises(UserError, match=r"compares 3 steps of 'crf' with labels of shape \(2,\)"):
        run(np.zeros((2, 3), int), np.zeros(2, int))
