"""Recurrent layers, embeddings and one-hot vectors: agreement with PyTorch, lengths, and refused sources."""

from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import JobError
from dsinga.layers import Layer
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from tests.support.layer_cases import BATCH, context
from tests.support.refusals import refused

NUMPY = BACKENDS["numpy"]()
TIMES, INPUTS, SIZE = 6, 3, 4
FIELDS = {"kGRU": "gru_conf", "kLSTM": "lstm_conf", "kRNN": "rnn_conf"}
SEQUENCES = (BATCH, TIMES, INPUTS)
every_kind = pytest.mark.parametrize("kind", FIELDS)


def recurrent(kind: str, *shapes: tuple[int, ...], **settings: Any) -> LayerCase:
    lengths = {"classes": 3, "steps": TIMES} if len(shapes) == 2 and "initial_state" not in settings else {}
    return LayerCase(kind, shapes, {FIELDS[kind]: {"dim_hidden": SIZE, **settings}}, variant=str(settings), **lengths)


class Peer:
    """PyTorch's layer with the same params; the second of its two biases is zero."""

    def __init__(self, kind: str, layer: Layer, params: list[np.ndarray]):
        torch = pytest.importorskip("torch")
        cls = {"kGRU": torch.nn.GRU, "kLSTM": torch.nn.LSTM, "kRNN": torch.nn.RNN}[kind]
        inputs = layer.source_shapes[0][2]
        both = layer.shape[2] == 2 * SIZE
        self.module = cls(inputs, SIZE, batch_first=True, bidirectional=both, dtype=torch.float64)
        self.leaves = [torch.tensor(param, requires_grad=True) for param in params]
        count = len(params) // (2 if both else 1)
        self.named = {}
        for suffix, leaves in (("", self.leaves[:count]), ("_reverse", self.leaves[count:])):
            if leaves:
                if kind == "kGRU":
                    leaves = [torch.cat([leaves[k + 1], leaves[k], leaves[k + 2]]) for k in range(0, count, 3)]
                zeros = torch.zeros_like(leaves[2])
                names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
                self.named.update({f"{name}{suffix}": leaf for name, leaf in zip(names, [*leaves, zeros], strict=True)})

    def __call__(self, x: Any, lengths: np.ndarray | None, state: Any = None) -> tuple[Any, Any]:
        import torch
        from torch.nn.utils import rnn

        if lengths is not None:
            x = rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        y, last = torch.func.functional_call(self.module, self.named, (x, state))
        if lengths is not None:
            y, _ = rnn.pad_packed_sequence(y, batch_first=True, total_length=TIMES)
        return y, last


@every_kind
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_recurrent_layers_agree_with_torch(kind: str, bidirectional: bool, with_lengths: bool):
    torch = pytest.importorskip("torch")
    case = recurrent(kind, SEQUENCES, *[(BATCH, TIMES)] * with_lengths, bidirectional=bidirectional)
    layer, (params, sources) = case.layer(), case.inputs(NUMPY, np.float64)
    lengths = (sources[1] >= 0).sum(axis=1) if with_lengths else None
    peer, x = Peer(kind, layer, params), torch.tensor(sources[0], requires_grad=True)
    theirs, _ = peer(x, lengths)
    output = layer.compute_feature(params, sources, context(NUMPY))
    np.testing.assert_allclose(output.feature, theirs.detach().numpy(), rtol=1e-9, atol=1e-12)
    grad = np.random.default_rng(0).normal(size=layer.shape)
    theirs.backward(torch.tensor(grad))
    for_sources, for_params = layer.compute_gradient(params, sources, output, grad, case.needs(), context(NUMPY))
    np.testing.assert_allclose(for_sources[0], x.grad.numpy(), rtol=1e-9, atol=1e-12)
    for leaf, gradient in zip(peer.leaves, for_params, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-9, atol=1e-12)


@every_kind
def test_a_state_is_carried_over(kind: str):
    """Two batches of half sequences, with the state carried over, give the same as one batch of whole sequences."""
    torch = pytest.importorskip("torch")
    case = recurrent(kind, SEQUENCES, carry=True)
    layer, (params, sources) = case.layer(), case.inputs(NUMPY, np.float64)
    role, state = layer.params[-1].role, np.zeros(layer.params[-1].shape)
    assert (role, layer.params[-1].by_rows, layer.params[-1].trainable) == ("state", True, False)
    features = []
    for part in (slice(0, 4), slice(4, 6)):
        output = layer.compute_feature([*params[:-1], state], [sources[0][:, part]], context(NUMPY))
        features.append(output.feature)
        state = output.state["state"]
    whole, last = Peer(kind, layer, params[:-1])(torch.tensor(sources[0]), None)
    np.testing.assert_allclose(np.concatenate(features, axis=1), whole.detach().numpy(), rtol=1e-9)
    expected = torch.cat(last, dim=2) if kind == "kLSTM" else last
    np.testing.assert_allclose(state, expected[0].detach().numpy(), rtol=1e-9)


@every_kind
def test_without_its_state_param_every_sequence_begins_with_zeros(kind: str):
    """Nets of phases other than training have no such param."""
    carrying, plain = recurrent(kind, SEQUENCES, carry=True), recurrent(kind, SEQUENCES)
    params, sources = plain.inputs(NUMPY, np.float64)
    output = carrying.layer().compute_feature(params, sources, context(NUMPY))
    assert not output.state
    np.testing.assert_array_equal(
        output.feature, plain.layer().compute_feature(params, sources, context(NUMPY)).feature
    )


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32])
def test_codes_of_any_dtype_make_zeros_after_the_end(dtype: type):
    layer = LayerCase("kOneHot", ((2, 3),), {"onehot_conf": {"vocab_size": 3}, "unroll_len": 2}).layer()
    codes = np.array([[2, 0, 1], [1, 1, 0]]).astype(dtype)
    feature = layer.compute_feature((), [codes], context(NUMPY)).feature
    assert feature.tolist() == [[[0, 0, 1], [1, 0, 0]], [[0, 1, 0], [0, 1, 0]]]
    if dtype != np.uint8:
        codes[1, 1:] = -1
        assert layer.compute_feature((), [codes], context(NUMPY)).feature[1].tolist() == [[0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("code", [3, -2, 0.5])
def test_numbers_that_are_no_codes_are_refused(code: float):
    layer = LayerCase("kOneHot", ((1, 2),), {"onehot_conf": {"vocab_size": 3}}).layer()
    with pytest.raises(UserError, match=rf"'layer'.*'source0' gives {code}.* 0 to 2"):
        layer.compute_feature((), [np.array([[0, code]])], context(NUMPY))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (LayerCase("kOneHot", ((2, 3),)), "needs vocab_size"),
        (LayerCase("kEmbedding", ((2, 3, 4),), {"embedding_conf": {"vocab_size": 3}}), "one code for each step"),
        (LayerCase("kOneHot", ((2, 3),), {"onehot_conf": {"vocab_size": 3}, "unroll_len": 4}), "takes 4 steps.* 3"),
        (LayerCase("kGRU", (SEQUENCES,)), "needs gru_conf"),
        (recurrent("kGRU", (BATCH, 3, 4, 4)), "takes sequences.*kOneHot or kEmbedding"),
        (recurrent("kGRU", (BATCH,)), "takes sequences"),
        (recurrent("kGRU", SEQUENCES, SEQUENCES, SEQUENCES), "not 3"),
        (recurrent("kGRU", (BATCH, 3), (BATCH, 5)), "5 x 4, from its second source.* 5 x 5"),
        (recurrent("kLSTM", (BATCH, 3)), "takes whole sequences"),
        (recurrent("kGRU", (BATCH, 3), bidirectional=True), "whole sequences"),
        (recurrent("kRNN", SEQUENCES, bidirectional=True, carry=True), "both directions"),
        (recurrent("kGRU", SEQUENCES, (BATCH, 5), initial_state=True), "initial_state 5 x 4, but .* gives 5 x 5; put"),
        (recurrent("kGRU", SEQUENCES, initial_state=True), "takes sequences .*, and the initial_state from its last"),
        (recurrent("kGRU", SEQUENCES, (BATCH, 4), initial_state=True, bidirectional=True), "cannot be bidirectional"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value),
)
def test_unsuitable_sources_are_refused_in_the_constructor(case: LayerCase, message: str):
    refused(lambda: case.layer(), f"'layer'.*{message}", error=JobError)


def test_lengths_of_other_sequences_are_refused():
    layer = recurrent("kGRU", SEQUENCES, (BATCH, TIMES)).layer()
    params = [np.zeros(spec.shape, np.float32) for spec in layer.params]
    for labels, message in ((None, "'source1' has no labels"), (np.zeros((BATCH, 3), int), "6 steps.*3 a row")):
        with pytest.raises(UserError, match=message):
            layer.compute_feature(params, [np.zeros(SEQUENCES, np.float32), labels], context(NUMPY))
