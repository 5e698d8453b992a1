"""Layers of ensembles beside the package tabm, and beside their formulas, in float64."""

from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import Phase
from dsinga.layers import Layer
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import layer_context
from dsinga.training.initialisers import initialise
from tests.support import emulated_cupy
from tests.support.refusals import refused

OPS = BACKENDS["numpy"]()
B, K, N, OUT = 7, 3, 5, 4
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def passes(layer: Layer, params: list[Any], sources: list[Any], grad: Any = None) -> tuple[Any, Any, Any]:
    """Return the output, and the gradients for all sources but labels, and for the params."""
    ctx = layer_context(OPS, B)
    output = layer.compute_feature(params, sources, ctx)
    needs = [source.dtype.kind == "f" for source in sources]
    return output, *layer.compute_gradient(params, sources, output, grad, needs, ctx)


OF_ENSEMBLE = "kBatchEnsemble", {"num_output": OUT, "members": K}, ("weight", "r", "s", "bias")
PACKAGE: dict[str, tuple[tuple[int, ...], str, dict[str, Any], tuple[str, ...]]] = {
    "given to all": ((B, N), *OF_ENSEMBLE),
    "own": ((B, K, N), *OF_ENSEMBLE),
    "dense": ((B, K, N), "kMemberDense", {"num_output": OUT}, ("weight", "bias")),
}


@pytest.mark.parametrize("case", PACKAGE)
def test_a_layer_of_members_is_that_of_the_package(case: str):
    torch, tabm = pytest.importorskip("torch"), pytest.importorskip("tabm")
    shape, kind, conf, names = PACKAGE[case]
    layer = LayerCase(kind, [shape], {f"{kind[1:].lower()}_conf": conf}).layer()
    params, x, grad = [numbers(*spec.shape) for spec in layer.params], numbers(*shape), numbers(B, K, OUT)
    output, (for_x,), for_params = passes(layer, params, [x], grad)
    peer = tabm.LinearEnsemble(N, OUT, k=K).double()
    if kind == "kBatchEnsemble":
        peer = tabm.LinearBatchEnsemble(N, OUT, k=K, scaling_init="random-signs").double()
    with torch.no_grad():
        for param, name in zip(params, names, strict=True):
            getattr(peer, name).copy_(torch.tensor(param))
    given = torch.tensor(x, requires_grad=True)
    y = peer(tabm.ensemble_view(given, K, training=True) if len(shape) == 2 else given)
    y.backward(torch.tensor(grad))
    expected = [y, given.grad, *(getattr(peer, name).grad for name in names)]
    for array, tensor in zip([output.feature, for_x, *for_params], expected, strict=True):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-12, atol=1e-12)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("of", "probabilities"), [("CLASSES", softmax), ("ANSWERS", sigmoid), ("NUMBERS", lambda x: x)]
)
def test_the_mean_of_members_is_that_of_their_probabilities(of: str, probabilities: Any):
    layer, x = LayerCase("kMemberMean", [(B, K, OUT)], {"membermean_conf": {"of": of}}).layer(), 5 * numbers(B, K, OUT)
    mean = layer.compute_feature([], [x], layer_context(OPS, B)).feature
    np.testing.assert_allclose(probabilities(mean), probabilities(x).mean(axis=1), rtol=1e-12)


def test_sure_members_give_finite_scores():
    x = np.array([[[200.0, -200], [300, 0]]], np.float32)
    for of in ("CLASSES", "ANSWERS"):
        layer = LayerCase("kMemberMean", [x.shape], {"membermean_conf": {"of": of}}).layer()
        ctx = layer_context(OPS, 1)
        output = layer.compute_feature([], [x], ctx)
        (for_x,), _ = layer.compute_gradient([], [x], output, np.ones((1, 2), np.float32), [True], ctx)
        assert np.isfinite(output.feature).all()
        assert np.isfinite(for_x).all()


def torch_loss(kind: str, outputs: Any, labels: Any) -> Any:
    functional = pytest.importorskip("torch").nn.functional
    if kind == "kMemberSoftmaxLoss":
        return functional.cross_entropy(outputs, labels)
    if kind == "kMemberSigmoidLoss":
        return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="sum") / len(labels)
    return functional.mse_loss(outputs, labels, reduction="sum") / len(labels)


@pytest.mark.parametrize("kind", ["kMemberSoftmaxLoss", "kMemberSigmoidLoss", "kMemberEuclideanLoss"])
def test_the_loss_is_the_mean_of_the_members_in_training_and_that_of_their_mean_in_tests(kind: str):
    torch = pytest.importorskip("torch")
    labels = RNG.integers(0, OUT, B) if "Softmax" in kind else (numbers(B, OUT) > 0).astype(np.float64)
    layer = LayerCase(kind, [(B, OUT), labels.shape, (B, K, OUT)], classes=OUT if labels.ndim == 1 else 0).layer()
    mean, members = numbers(B, OUT), numbers(B, K, OUT)
    output, (for_mean, _, for_members), _ = passes(layer, [], [mean, labels, members])
    tested = layer.compute_feature([], [mean, labels, members], layer_context(OPS, B, Phase.kTest))
    given, targets = torch.tensor(members, requires_grad=True), torch.tensor(labels)
    loss = sum(torch_loss(kind, given[:, member], targets) for member in range(K)) / K
    loss.backward()
    total, rows = output.metrics["loss"]
    assert total / rows == pytest.approx(float(loss.detach()), rel=1e-12)
    np.testing.assert_allclose(for_members, given.grad.numpy(), rtol=1e-12, atol=1e-14)
    assert not for_mean.any()
    total, rows = tested.metrics["loss"]
    assert (total / rows, rows) == (pytest.approx(float(torch_loss(kind, torch.tensor(mean), targets)), rel=1e-12), B)


def test_factors_begin_with_one_sign_for_each_block_of_columns():
    from dsinga.job import ParamGenConf

    signs = initialise((50, 6), ParamGenConf(type="kMemberScales", block=[1, 3, 2]), np.random.default_rng(0))
    assert set(np.unique(signs)) == {-1, 1}
    assert (signs[:, 1:4] == signs[:, 1:2]).all()
    assert (signs[:, 4] == signs[:, 5]).all()
    assert len(np.unique(signs, axis=0)) == 8
    normal = initialise((5000, 2), ParamGenConf(type="kMemberScales", normal=True), np.random.default_rng(0))
    assert normal.std() == pytest.approx(1, abs=0.03)
    rows = initialise((4, 9), ParamGenConf(type="kUniformRow", low=-0.5, high=0.5), np.random.default_rng(0))
    assert (rows == rows[0]).all()
    assert np.abs(rows).max() <= 0.5
    with pytest.raises(UserError, match="block has 4 columns in all, but the param has 6; give the columns of each"):
        initialise((50, 6), ParamGenConf(type="kMemberScales", block=[1, 3]), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("kind", "conf", "shapes", "fault"),
    [
        ("kBatchEnsemble", {"batchensemble_conf": {"num_output": 2}}, [(B, 3, 4)], "has 32 members, but .* those of 3"),
        ("kBatchEnsemble", {"batchensemble_conf": {"num_output": 2}}, [(B, 3, 4, 4)], "takes rows .batch, numbers., "),
        ("kMemberDense", {"memberdense_conf": {"num_output": 2}}, [(B, 4)], "takes what each member computes of each"),
        ("kMemberEuclideanLoss", {}, [(B, 2), (B, 2), (B, 3, 4)], "give first the kMemberMean of the third"),
        ("kCategories", {"categories_conf": {"size": [3]}}, [(B, 2)], "size has 1 numbers, but 'source0' gives 2; giv"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, conf: dict[str, Any], shapes: list[Any], fault: str):
    refused(lambda: LayerCase(kind, shapes, conf).layer(), fault)


def test_categories_are_one_hot_vectors_and_rows_of_the_table():
    conf = {"categories_conf": {"size": [9, 3, 10, 2], "one_hot": 3, "width": 2}}
    layer = LayerCase("kCategories", [(2, 4)], conf).layer()
    codes, table = np.array([[8, 1, 0, 1], [0, 2, 9, 0]], np.float32), numbers(19, 2)
    y = layer.compute_feature([table], [codes], layer_context(OPS, 2)).feature
    np.testing.assert_array_equal(y[:, :5], [[0, 1, 0, 0, 1], [0, 0, 1, 1, 0]])
    np.testing.assert_array_equal(y[:, 5:], [[*table[8], *table[9]], [*table[0], *table[18]]])
    for ops in (OPS, emulated_cupy.load()):
        arrays = [ops.asarray(array) for array in (table, np.array([[0, 3, 0, 0]], np.float32))]
        with pytest.raises(UserError, match="gives 3 for category 1, whose codes are 0 to 2; give size the number"):
            layer.compute_feature(arrays[:1], arrays[1:], layer_context(ops, 1))
