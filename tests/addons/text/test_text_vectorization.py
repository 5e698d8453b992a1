"""nn.TextVectorization: codes of texts, whose vocabulary is the model's."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from tests.core.nn.test_nn_further_habits import habits_of, run_habit
from tests.support.refusals import refused

TEXTS = ["good film", "a bad, bad film", "good", "bad", "so good", "a bad one"]
GOOD = np.array([1, 0, 1, 0, 1, 0])


def test_codes_are_those_of_the_page_of_keras():
    words = nn.TextVectorization(max_tokens=5000, output_sequence_length=4)
    words.adapt(["foo", "bar", "baz"])  # the example of keras.io, whose model predicts these codes
    np.testing.assert_array_equal(words([["foo qux bar"], ["qux baz"]]), [[2, 1, 4, 0], [1, 3, 0, 0]])
    assert words.get_vocabulary() == ["", "[UNK]", "foo", "baz", "bar"]
    words = nn.TextVectorization(4)
    words.adapt(np.array(["The cat, the Dog!", "the dog's"]))
    assert words.get_vocabulary() == ["", "[UNK]", "the", "dogs"]
    assert words.vocabulary_size() == 4
    np.testing.assert_array_equal(words(["THE dogs", "a"]), [[2, 3], [1, 0]])
    letters = nn.TextVectorization(split="character", standardize=None, vocabulary=["", "[UNK]", "b", "a"])
    np.testing.assert_array_equal(letters(["ab", "Aba"]), [[3, 2, 0], [1, 2, 3]])
    assert pickle.loads(pickle.dumps(letters)).get_vocabulary() == letters.get_vocabulary()


def test_a_model_of_texts_keeps_its_vocabulary(tmp_path: Path):
    words = nn.TextVectorization(output_sequence_length=4)
    words.adapt(TEXTS)
    size = words.vocabulary_size()
    layers = [words, nn.Embedding(size, 4, mask_zero=True), nn.GRU(4), nn.Dense(1, activation="sigmoid")]
    texts = nn.Sequential([nn.Input((1,), dtype="string"), *layers], name="net")
    codes = nn.Sequential([nn.Input((4,)), *(layer.remake() for layer in layers[1:])], name="net")
    for made in (texts, codes):
        made.compile(nn.Adam(0.05), "binary_crossentropy")
    assert texts.params.keys() == codes.params.keys()
    texts.fit(TEXTS, GOOD, epochs=30, workspace=tmp_path / "run", progress=False)
    codes.fit(words(TEXTS), GOOD, epochs=30, progress=False)
    texts.save(tmp_path / "saved")
    loaded = nn.load_model(tmp_path / "saved")
    for made in (texts, loaded):
        np.testing.assert_array_equal(made.predict(np.array(TEXTS)[:, None]), codes.predict(words(TEXTS)))
        assert made.evaluate(TEXTS, GOOD) == codes.evaluate(words(TEXTS), GOOD)
    assert texts.predict(["good, so good"]) > 0.5 > texts.predict(["bad"])
    (checkpoint,) = tmp_path.glob("run/**/checkpoint.json")
    assert "film" in json.loads(checkpoint.read_text())["meta"]["job"]
    loaded.fit(TEXTS, GOOD, progress=False)
    assert str(loaded.job().neuralnet.layer[0].store_conf.text).count("film") == 1


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("nn.TextVectorization()(['a'])", "has no vocabulary; call adapt"),
        ("nn.TextVectorization(output_mode='tf_idf')", "output_mode is \"int\", codes, not 'tf_idf'"),
        ("nn.TextVectorization(standardize=str.lower)", "standardize is lower; give"),
        ("nn.TextVectorization(split='commas')", "split is 'commas'; give 'whitespace'"),
        ("nn.TextVectorization(max_tokens=0)", "max_tokens of TextVectorization is 0; give a whole number"),
        ("nn.TextVectorization(vocabulary=['a', 'b', 'a'])", "the vocabulary has 'a', which is there before"),
        ("nn.TextVectorization(3, vocabulary=['a', 'b'])", "has 2 words, and max_tokens allows 1"),
        ("nn.TextVectorization(ngrams=2)", "has no argument 'ngrams'; leave it out"),
        ("nn.TextVectorization().adapt([1, 2])", "takes texts, a list or an array"),
    ],
)
def test_mistakes_with_texts_have_a_sentence(mistake: str, words: str):
    refused(lambda: eval(mistake, {"nn": nn}), words)


@pytest.mark.parametrize("texts", [["a", None], np.array(["a", np.nan], object)])
def test_a_record_without_a_text_is_named(texts: Any):
    made = nn.Sequential([nn.TextVectorization(vocabulary=["a"]), nn.Embedding(3, 2), nn.GlobalAveragePooling1D()])
    refused(lambda: made.predict(texts), "'data' takes texts, but record 1 is none; leave it out")


# Habits of those who know Keras that need the layers of texts.
@pytest.mark.parametrize("habit", habits_of("text"))
def test_a_habit_of_keras_works_as_written(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_habit(habit, tmp_path, monkeypatch)
