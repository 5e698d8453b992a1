"""Gradients that are put off until a collective waits have the bits of those that are not, and are pushed once."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.layers import Records
from dsinga.layers.images.convolution import Convolution
from dsinga.ops import get_ops
from dsinga.training import bp
from tests.support.small_job import assert_same
from tests.support.training_cases import build, context, conv, dense, layer

LACKS_BF16 = get_ops().name != "onednn" or bool(get_ops().lacks_bf16())


@register("layer", "HalvedConvolution")
class HalvedConvolution(Convolution):
    """Overrides the gradient alone, so that nothing of it may be put off."""

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        for_sources, for_params = super().compute_gradient(params, sources, output, grad, needs, ctx)
        return for_sources, tuple(gradient / 2 for gradient in for_params)


def residual(conv1, pixels=(9, 8)):
    """A net of convolutions, each with batch normalisation, and a branch."""
    return build(
        conv("conv0", "data", 4), layer("norm0", "kBM", "conv0"), conv1,
        layer("norm1", "kBM", "conv1"), layer("relu1", "kReLU", "norm1"),
        conv("conv2", "relu1", 4), layer("norm2", "kBM", "conv2"), layer("relu2", "kReLU", "norm2"),
        conv("conv3", "relu2", 4), layer("norm3", "kBM", "conv3"),
        layer("add", "kAdd", "norm3", "relu1"), layer("relu3", "kReLU", "add"),
        dense("top", "relu3", 4), layer("loss", "kSoftmaxLoss", "top", "data"),
        shape=(4, *pixels), rows=6,
    )  # fmt: skip


SHARED = [{"share_from": "conv0_weight"}, {}]
WINDOW = {"num_filters": 4, "kernel": 3, "pad": 1}
ABOVE = [{"share_from": "conv2_weight"}, {}]


def window(kind="kConvolution", **more):
    return layer("conv1", kind, "norm0", convolution_conf={**WINDOW, **more})


NETS: dict[str, tuple[Callable, int]] = {  # with how many gradients are put off: not that of the lowest convolution
    "plain": (lambda: residual(conv("conv1", "norm0", 4)), 3),
    "strides": (lambda: residual(window(stride=2, bias_term=False)), 3),
    "shared": (lambda: residual(conv("conv1", "norm0", 4).replace(param=SHARED)), 2),
    "shared with one above": (lambda: residual(conv("conv1", "norm0", 4).replace(param=ABOVE)), 1),
    "groups": (lambda: residual(window(group=2)), 2),
    "pixel": (lambda: residual(conv("conv1", "norm0", 4), (1, 1)), 3),  # most of a kernel meets padding alone
    "own": (lambda: residual(window("HalvedConvolution")), 2),
}


def pushed(net, ops, waiting: deque | None) -> tuple[dict[str, np.ndarray], int]:
    """Return what is pushed, and how many gradients were computed while a sum was waited for."""
    rng = np.random.default_rng(0)
    values = {name: rng.uniform(0.2, 0.5, param.shape).astype(np.float32) for name, param in net.params.items()}
    data = rng.normal(size=net.layer("data").shape).astype(np.float32)
    gradients, calls = [], 0

    def all_reduce(key, array):
        nonlocal calls
        while waiting:
            waiting.popleft()()
            calls += 1
        return array

    ctx = replace(context(net, ops=ops), all_reduce=all_reduce, meanwhile=waiting)
    records = {"data": Records(data, rng.integers(0, 4, len(data)))}
    bp(net, values, records, ctx, lambda name, gradient: gradients.append((name, np.array(gradient))))
    assert len(gradients) == len(dict(gradients))
    assert not waiting
    return dict(gradients), calls


@pytest.mark.parametrize(
    ("backend", "precision"),
    [
        ("numpy", "float32"),
        ("onednn", "float32"),
        pytest.param("onednn", "bf16", marks=pytest.mark.skipif(LACKS_BF16, reason="the processor has no bfloat16")),
    ],
)
@pytest.mark.parametrize("name", NETS)
def test_gradients_that_are_put_off_have_the_same_bits(backend: str, precision: str, name: str):
    make, count = NETS[name]
    net, ops = make(), get_ops(backend).for_worker(precision=precision)
    at_once, _ = pushed(net, ops, None)
    later, calls = pushed(net, ops, deque())
    assert calls == count
    assert_same(later, at_once)


def test_an_error_of_a_gradient_that_is_put_off_names_its_layer(monkeypatch):
    net, ops = NETS["plain"][0](), get_ops("numpy")
    compute = Convolution.compute_gradient

    def fail(self, params, sources, output, grad, needs, ctx):
        if not needs[0] and self.name == "conv2":
            raise UserError("no memory")
        return compute(self, params, sources, output, grad, needs, ctx)

    monkeypatch.setattr(Convolution, "compute_gradient", fail)
    with pytest.raises(UserError, match="no memory") as error:
        pushed(net, ops, deque())
    assert "in compute_gradient of layer 'conv2'" in error.value.__notes__[0]
