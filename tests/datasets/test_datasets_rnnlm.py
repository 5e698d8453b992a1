"""SINGA's rnnlm example runs with its layers as a Python file that is imported, datasets/rnnlm/rnnlm.py."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.base import registry
from dsinga.data import RecordStore, import_records
from dsinga.job import LayerConf, Phase, loads
from dsinga.layers import Context, Rows
from dsinga.ops import BACKENDS
from dsinga.testing.layer_passes import assert_slopes
from tests.support.registries import restored_registry

FILE = Path(__file__).parents[2] / "datasets" / "rnnlm" / "rnnlm.py"
CTX = Context(BACKENDS["numpy"](), Phase.kTrain, Rows(0, 1, 1))
TEXT = "the cat sat\non the mat where the dog was and the other cat sat too\nthe dog sat\n"

# As SINGA's job.conf, for a vocabulary of 12.
JOB = """
name: "rnnlm" seed: 1 train_steps: 60 disp_freq: 30 validate_steps: 2 validate_freq: 60
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixedStep fixedstep_conf: { step:0 step:48810 step_lr:0.1 step_lr:0.05 } } }
neuralnet {
layer { name: "data" user_type: "kData"
  [data_conf] { backend: "kvfile" path: "examples/rnnlm/train_data.bin" max_window: 10 } include: kTrain }
layer { name: "data" user_type: "kData"
  [data_conf] { path: "examples/rnnlm/valid_data.bin" max_window: 10 } include: kVal }
layer { name: "embedding" user_type: "kEmbedding" srclayers: "data" [embedding_conf] { word_dim: 5 vocab_size: 12 }
  param { name: "w1" init { type: kUniform low:-0.3 high:0.3 } } }
layer { name: "hidden" user_type: "kHidden" srclayers:"embedding"
  param { name: "w2" init { type: kUniform low:-0.3 } } }
layer { name: "loss" user_type: "kLoss" srclayers:"hidden" srclayers:"data" [loss_conf] { nclass:4 vocab_size: 12 }
  param { name: "w3" init { type: kUniform low:-0.3 } } param { name: "w4" init { type: kUniform low:-0.3 } } }
}
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A folder with the imported text; afterwards the built-in kEmbedding is registered again."""
    with restored_registry(without_users=True):
        registry.import_file(FILE)
        folder = tmp_path_factory.mktemp("rnnlm")
        for name in ("train", "valid"):
            (folder / name).write_text(TEXT)
        import_records("rnnlm", folder, folder / "examples" / "rnnlm", classes=4)
        yield folder


def test_windows_end_with_a_sentence_or_after_ten_words(stores):
    store = RecordStore(stores / "examples" / "rnnlm" / "train_data.zarr")
    windows, _ = store.read(range(len(store)))
    words = [[store.vocabulary[code] for code in window[:, 0] if code >= 0] for window in windows]
    assert words == [
        "the cat sat </s>".split(),
        "</s> on the mat where the dog was and the other".split(),
        "other cat sat too </s>".split(),
        "</s> the dog sat </s>".split(),
    ]
    codes, groups, starts, stops = windows[windows[:, :, 0] >= 0].T
    assert ((starts <= codes) & (codes < stops)).all()
    assert groups.max() == 3


def test_singas_job_runs_and_learns(stores):
    result = dsinga.train(loads(JOB, "job.conf"), data_root=str(stores), workers=1, progress=False)
    first, *_, last = [row["loss"] for row in result.history if row["phase"] == "val"]
    assert last < first
    assert result.params["w3"].shape == (12, 5)


def layer(kind: str, *shapes: tuple[int, ...], **settings: dict) -> dsinga.layers.Layer:
    conf = LayerConf(name="x", user_type=kind, **settings)
    return registry.lookup("layer", kind)(conf, shapes)


def test_the_gradient_of_the_recurrence_matches_the_numerical_gradient(stores):
    rng = np.random.default_rng(0)
    x, weight, dy = rng.normal(size=(1, 4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(1, 4, 3))
    hidden = layer("kHidden", x.shape)
    output = hidden.compute_feature([weight], [x], CTX)
    (dx,), (dweight,) = hidden.compute_gradient([weight], [x], output, dy, [True], CTX)
    assert_slopes(lambda x: float((hidden.compute_feature([weight], [x], CTX).feature * dy).sum()), x, dx)
    assert_slopes(lambda w: float((hidden.compute_feature([w], [x], CTX).feature * dy).sum()), weight, dweight)


def test_the_loss_equals_that_of_the_built_in_layer(stores):
    store = RecordStore(stores / "examples" / "rnnlm" / "train_data.zarr")
    windows = store.read([1])[0]
    rng = np.random.default_rng(1)
    h, params = rng.normal(size=(1, 10, 5)), [rng.normal(size=(12, 5)), rng.normal(size=(4, 5))]
    imported = layer("kLoss", h.shape, windows.shape, loss_conf={"nclass": 4, "vocab_size": 12})
    starts = sorted(
        {int(start) for start in RecordStore(store.location).read(range(len(store)))[0][..., 2].flat} - {-1}
    )
    conf = LayerConf(name="y", type="kClassSoftmaxLoss", srclayers=["h", "next"])
    conf = conf.replace(classsoftmaxloss_conf={"vocab_size": 12, "class_start": starts})
    built_in = registry.lookup("layer", "kClassSoftmaxLoss")(conf, [h.shape, (1, 10)])
    labels = windows[:, 1:, 0]
    output, expected = (
        imported.compute_feature(params, [h, windows], CTX),
        built_in.compute_feature(params, [h, labels], CTX),
    )
    assert output.metrics["loss"][0] == pytest.approx(expected.metrics["loss"][0], rel=1e-6)
    (dh, _), grads = imported.compute_gradient(params, [h, windows], output, None, [True, False], CTX)
    (expected_dh, _), expected_grads = built_in.compute_gradient(
        params, [h, labels], expected, None, [True, False], CTX
    )
    for gradient, expected_gradient in zip((dh, *grads), (expected_dh, *expected_grads), strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-9)
