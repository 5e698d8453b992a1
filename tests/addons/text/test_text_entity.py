"""kEntityF1 against entities found by hand and by the rules of CoNLL's conlleval."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsinga.addons.text.tagging import TagScheme, entity_metrics
from dsinga.base.registry import lookup
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import Output, RecordInfo
from dsinga.net import NeuralNet, create_net
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context
from tests.support.refusals import refused
from tests.support.training_cases import layer as layer_conf

NAMES = ("O", "B-x", "I-x", "B-y", "I-y")
CTX = context(BACKENDS["numpy"]())


def coded(*sentences: str) -> np.ndarray:
    sentence_tags = [sentence.split() for sentence in sentences]
    longest = max(map(len, sentence_tags))
    return np.array([[NAMES.index(tag) for tag in tags] + [-1] * (longest - len(tags)) for tags in sentence_tags])


def run(tags: np.ndarray, gold: np.ndarray) -> Output:
    cls = lookup("layer", "kEntityF1")
    conf = LayerConf(name="f1", type="kEntityF1", srclayers=["crf", "data"])
    return cls(conf, [tags.shape, gold.shape]).compute_feature([], [tags, gold], CTX)


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


Entity = tuple[int, int, str]  # first word, last word, type


def begins_by_conlleval(before: str, tag: str) -> bool:
    """Return whether an entity begins at ``tag``, by the rules of startOfChunk in CoNLL's conlleval, with S added."""
    (role, _, kind), (role_before, _, kind_before) = tag.partition("-"), before.partition("-")
    if role in ("B", "S"):
        return True
    if role_before in ("E", "S", "O") and role in ("E", "I"):
        return True
    return role != "O" and kind_before != kind


def ends_by_conlleval(tag: str, after: str) -> bool:
    """Return whether an entity ends with ``tag``, by the rules of endOfChunk in CoNLL's conlleval, with S added."""
    (role, _, kind), (role_after, _, kind_after) = tag.partition("-"), after.partition("-")
    if role in ("E", "S"):
        return True
    if role in ("B", "I") and role_after in ("B", "S", "O"):
        return True
    return role != "O" and kind != kind_after


def spans_by_conlleval(tags: list[str]) -> set[Entity]:
    """Return the entities of a sentence, found word by word, as conlleval finds them."""
    spans, begin = set(), 0
    for at, (before, tag, after) in enumerate(zip(["O", *tags], tags, [*tags[1:], "O"], strict=False)):
        begin = at if begins_by_conlleval(before, tag) else begin
        if tag != "O" and ends_by_conlleval(tag, after):
            spans.add((begin, at, tag.partition("-")[2]))
    return spans


BIOES = ["O", *(f"{role}-{kind}" for kind in "xy" for role in "BIES")]


tag_rows = arrays(int, (3, 6), elements=st.integers(0, 8))


@given(names=st.permutations(BIOES), tags=tag_rows, gold=tag_rows, lengths=arrays(int, 3, elements=st.integers(1, 6)))
def test_tags_of_any_names_are_counted_as_by_conlleval(names, tags, gold, lengths):
    beyond = np.arange(6) >= lengths[:, None]
    tags, gold = np.where(beyond, -1, tags), np.where(beyond, -1, gold)
    pairs = [
        tuple(spans_by_conlleval([names[tag] for tag in row if tag >= 0]) for row in rows)
        for rows in zip(tags.tolist(), gold.tolist(), strict=True)
    ]
    right = sum(len(predicted & true) for predicted, true in pairs)
    count, gold_count = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    expected = {"precision": (right, count), "recall": (right, gold_count), "f1": (2 * right, count + gold_count)}
    assert entity_metrics(tags, gold, TagScheme.of(names)) == expected


def iob1(before: Entity | None, entity: Entity) -> list[str]:
    first, last, kind = entity
    adjacent = before is not None and before[1] + 1 == first and before[2] == kind
    return [f"{'B' if adjacent else 'I'}-{kind}", *[f"I-{kind}"] * (last - first)]


def by_roles(begin: str, inner: str, end: str, single: str):
    def encode(before: Entity | None, entity: Entity) -> list[str]:
        first, last, kind = entity
        roles = single if first == last else begin + inner * (last - first - 1) + end
        return [f"{role}-{kind}" for role in roles]

    return encode


ENCODERS = {
    "IOB1": iob1, "IOB2": by_roles("B", "I", "I", "B"), "IOE2": by_roles("I", "I", "E", "E"),
    "BIOES": by_roles("B", "I", "E", "S"), "BILOU": by_roles("B", "I", "L", "U"), "BMES": by_roles("B", "M", "E", "S"),
    "BMEWO": by_roles("B", "M", "E", "W"),
}  # fmt: skip


@st.composite
def sentences_with_entities(draw: st.DrawFn) -> tuple[int, list[Entity]]:
    entities, at = [], 0
    while at < 8:
        length = draw(st.integers(0, 3))
        if length and at + length <= 8:
            entities.append((at, at + length - 1, draw(st.sampled_from("xy"))))
        at += length or 1
    return 8, entities


@pytest.mark.parametrize("scheme", ENCODERS)
@given(gold=sentences_with_entities(), predicted=sentences_with_entities())
def test_the_same_entities_are_found_in_every_scheme(scheme: str, gold, predicted):
    encoded = []
    for length, spans_of_sentence in (predicted, gold):
        tags = ["O"] * length
        for before, entity in zip([None, *spans_of_sentence], spans_of_sentence, strict=False):
            tags[entity[0] : entity[1] + 1] = ENCODERS[scheme](before, entity)
        encoded.append(tags)
    names = sorted({*encoded[0], *encoded[1]})
    codes = [np.array([[names.index(tag) for tag in tags]]) for tags in encoded]
    true, found = set(gold[1]), set(predicted[1])
    metrics = entity_metrics(codes[0], codes[1], TagScheme.of(names))
    assert metrics["precision"] == (len(found & true), len(found))
    assert metrics["recall"] == (len(found & true), len(true))


def test_the_names_of_tags_come_from_the_records():
    names = tuple(BIOES)
    words = layer_conf("words", "kRecordInput", store_conf={"path": "x"})
    relu = layer_conf("relu", "kReLU", "words")
    f1 = layer_conf("f1", "kEntityF1", "words", "relu")

    def net_of(label_names: tuple[str, ...]) -> NeuralNet:
        info = RecordInfo((4, 9), 2, label_shape=(4,), label_names=label_names)
        return create_net(NetConf(layer=[words, relu, f1]), Phase.kTest, {"words": info})

    gold = np.array([[names.index(tag) for tag in ("B-x", "E-x", "S-y", "O")]])
    computed = net_of(names).layer("f1").compute_feature([], [np.eye(9, dtype=np.float32)[gold], gold], CTX)
    assert computed.metrics["f1"] == (4, 4)
    refused(lambda: net_of(("NN", "O", "VB")), "'relu'", "the tag 'NN'")


def test_labels_of_another_number_of_steps_are_refused():
    refused(lambda: run(np.zeros((2, 3), int), np.zeros(2, int)), "'crf'", r"of shape \(2")
