"""Attention and positional encodings: agreement with PyTorch, keys that a query does not see, refused sources."""

import math
from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.cutting.partitioning import partition
from dsinga.job import JobError
from dsinga.layers import RecordInfo
from dsinga.layers.sequences.attention import rotate
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from tests.support.layer_cases import BATCH, context
from tests.support.net_cases import net_of
from tests.support.refusals import refused

NUMPY = BACKENDS["numpy"]()
QUERY, KEYS, VALUES = (BATCH, 3, 8), (BATCH, 4, 8), (BATCH, 4, 8)
LENGTHS = {"classes": 3, "steps": 4}


def attention(*shapes: tuple[int, ...], kind: str = "kAttention", **settings: Any) -> LayerCase:
    lengths = LENGTHS if len(shapes[-1]) == 2 else {}
    return LayerCase(kind, shapes, {"attention_conf": {"num_heads": 2, **settings}}, **lengths)


def by_head(x: Any) -> Any:
    """Return (B, T, n) as (B, 2, T, n/2)."""
    return x.reshape(*x.shape[:2], 2, -1).swapaxes(1, 2)


def weights_of(score: str, query: Any, keys: Any, hides: Any, vector: Any) -> Any:
    """What PyTorch makes of queries and keys; ``hides`` says which keys a query does not see."""
    import torch

    q, k = by_head(query), by_head(keys)
    if score == "kAdditive":
        scores = (torch.tanh(q[:, :, :, None] + k[:, :, None]) * vector.reshape(1, 2, 1, 1, -1)).sum(-1)
    else:
        scores = q @ k.transpose(2, 3) / (math.sqrt(q.shape[-1]) if score == "kScaledDot" else 1)
    return scores.masked_fill(hides[:, None], -math.inf).softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("score", ["kScaledDot", "kDot", "kAdditive"])
def test_attention_agrees_with_torch(score: str, with_lengths: bool, with_values: bool, causal: bool):
    torch = pytest.importorskip("torch")
    shapes = [KEYS if causal else QUERY, KEYS, *[VALUES] * with_values, *[(BATCH, 4)] * with_lengths]
    case = attention(*shapes, score=score, causal=causal)
    layer, (params, sources) = case.layer(), case.inputs(NUMPY, np.float64)
    assert [spec.shape for spec in layer.params] == ([(8,)] if score == "kAdditive" else [])
    lengths = (sources[-1] >= 0).sum(axis=1) if with_lengths else np.full(BATCH, 4)
    hides = np.arange(4) >= np.broadcast_to(lengths[:, None, None], (BATCH, shapes[0][1], 1))
    if causal:
        hides = hides | np.triu(np.ones((4, 4), bool), 1)
    features = [torch.tensor(source, requires_grad=True) for source in sources[: 2 + with_values]]
    vector = torch.tensor(params[0], requires_grad=True) if params else None
    weights = weights_of(score, features[0], features[1], torch.tensor(hides), vector)
    theirs = (weights @ by_head(features[-1])).transpose(1, 2).reshape(*shapes[0][:2], 8)
    if score == "kScaledDot":
        library = torch.nn.functional.scaled_dot_product_attention(
            *map(by_head, (features[0], features[1], features[-1])), attn_mask=torch.tensor(~hides)[:, None]
        )
        np.testing.assert_allclose(theirs.detach(), library.transpose(1, 2).reshape(theirs.shape).detach(), rtol=1e-9)
    output = layer.compute_feature(params, sources, context(NUMPY))
    np.testing.assert_allclose(output.feature, theirs.detach().numpy(), rtol=1e-9)
    grad = np.random.default_rng(0).normal(size=layer.shape)
    theirs.backward(torch.tensor(grad))
    for_sources, for_params = layer.compute_gradient(params, sources, output, grad, case.needs(), context(NUMPY))
    for ours, feature in zip(for_sources, features, strict=False):
        np.testing.assert_allclose(ours, feature.grad.numpy(), rtol=1e-9, atol=1e-12)
    if vector is not None:
        np.testing.assert_allclose(for_params[0], vector.grad.numpy(), rtol=1e-9)
    seen = LayerCase("kAttentionWeights", [*shapes[:2], *shapes[2 + with_values :]], case.conf, **LENGTHS)
    if score != "kAdditive":
        ours = seen.layer().compute_feature([], [*sources[:2], *sources[2 + with_values :]], context(NUMPY))
        np.testing.assert_allclose(ours.feature, weights.detach().numpy(), rtol=1e-9)


def test_rotary_attention_is_that_of_rotated_queries_and_keys():
    """By a matrix for each position, equation 15 of RoFormer, and PyTorch's attention and gradients."""
    torch = pytest.importorskip("torch")
    shape, steps, size = (BATCH, 5, 12), 5, 6
    case = attention(shape, shape, shape, causal=True, rotary=True)
    layer, (_, sources) = case.layer(), case.inputs(NUMPY, np.float64)
    matrices = torch.zeros(steps, size, size, dtype=torch.float64)
    for t in range(steps):
        for i in range(0, size, 2):
            angle = t / 10_000 ** (i / size)
            matrices[t, i, i] = matrices[t, i + 1, i + 1] = math.cos(angle)
            matrices[t, i, i + 1], matrices[t, i + 1, i] = -math.sin(angle), math.sin(angle)
    features = [torch.tensor(source, requires_grad=True) for source in sources]
    query, keys, values = map(by_head, features)
    query, keys = (torch.einsum("tij,bhtj->bhti", matrices, x) for x in (query, keys))
    theirs = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
    theirs = theirs.transpose(1, 2).reshape(shape)
    output = layer.compute_feature([], sources, context(NUMPY))
    np.testing.assert_allclose(output.feature, theirs.detach().numpy(), rtol=1e-9)
    grad = np.random.default_rng(0).normal(size=shape)
    theirs.backward(torch.tensor(grad))
    for_sources, _ = layer.compute_gradient([], sources, output, grad, case.needs(), context(NUMPY))
    for ours, feature in zip(for_sources, features, strict=True):
        np.testing.assert_allclose(ours, feature.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_rotated_scores_depend_on_the_difference_of_steps_only():
    x = np.random.default_rng(0).normal(size=(1, 1, 8))
    rotated = [rotate(x, 2, NUMPY, start=step) for step in (0, 3, 100, 103)]
    scores = [(rotated[k] * rotated[k + 1]).sum() for k in (0, 2)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)
    np.testing.assert_allclose(rotate(rotated[1], 2, NUMPY, start=3, back=True), x, rtol=1e-12)


def test_mistakes_are_named_with_their_remedies() -> None:
    with pytest.raises(JobError, match="rotates pairs of features, but a head has 3; give queries and keys an even"):
        attention((BATCH, 3, 6), (BATCH, 3, 6), rotary=True).layer()
    with pytest.raises(JobError, match="rotates what only products compare; leave rotary or kAdditive out"):
        attention(QUERY, KEYS, rotary=True, score="kAdditive").layer()
    layer, sources = attention(QUERY, KEYS, (BATCH, 4)).layer(), [np.zeros(QUERY), np.zeros(KEYS)]
    with pytest.raises(UserError, match=r"the lengths of 4 keys from the labels of 'source2', which gives 6 a row"):
        layer.compute_feature([], [*sources, np.zeros((BATCH, 6), np.int64)], context(NUMPY))
    gap = np.tile(np.array([2, -1, 3, -1]), (BATCH, 1))
    refused(lambda: layer.compute_feature([], [*sources, gap], context(NUMPY)), "'source2'", "-1, 3, -1")
    refused(lambda: layer.compute_feature([], [*sources, None], context(NUMPY)), "'source2' has no labels")
    net = net_of(
        """
        layer { name: "data" type: kCSVInput store_conf { path: "x" } }
        layer { name: "heads" type: kAttention srclayers: ["data", "data"] partition_dim: 1
          attention_conf { num_heads: 2 } }
        """,
        data=RecordInfo((4, 6), 6, has_labels=False),
    )
    partition(net, 2)
    refused(lambda: partition(net, 3), "has 2 heads", "give it a", error=JobError)


@pytest.mark.parametrize("name", ["numpy", "onednn"])
@pytest.mark.parametrize("score", ["kScaledDot", "kAdditive"])
def test_keys_after_the_end_have_no_weight_at_all(score: str, name: str):
    """Not even keys of 1e30, and a row without any key gives zeros and takes no gradient."""
    try:
        ops = BACKENDS[name]()
    except UserError as error:
        pytest.skip(str(error))
    case = attention(QUERY, KEYS, VALUES, (BATCH, 4), score=score)
    layer, (params, sources) = case.layer(), case.inputs(NUMPY, np.float32)
    query, keys, values, labels = (np.array(source) for source in sources)
    labels[0], labels[1] = -1, [0, 0, -1, -1]
    results = []
    for beyond in (0.0, 1e30):
        keys[labels < 0] = values[labels < 0] = beyond
        output = layer.compute_feature(params, [query, keys, values, labels], context(ops))
        gradients, _ = layer.compute_gradient(
            params, [query, keys, values, labels], output, np.ones(layer.shape, np.float32), case.needs(), context(ops)
        )
        results.append((output.feature, *gradients[:3]))
    for without, beyond in zip(*results, strict=True):
        np.testing.assert_array_equal(without, beyond)
    feature, dquery, dkeys, dvalues = results[0]
    assert not feature[0].any()
    assert not dquery[0].any()
    assert not dkeys[labels < 0].any()
    assert not dvalues[labels < 0].any()


def test_positions_are_sines_and_cosines():
    case = LayerCase("kPositionalEncoding", [(BATCH, 6, 5)], {"positionalencoding_conf": {"scale": 3}})
    _, (x,) = case.inputs(NUMPY, np.float64)
    expected = np.array(x) * 3
    for t in range(6):
        for i in range(5):
            angle = t / 10_000 ** (2 * (i // 2) / 5)
            expected[:, t, i] += math.cos(angle) if i % 2 else math.sin(angle)
    layer = case.layer()
    output = layer.compute_feature([], [x], context(NUMPY))
    np.testing.assert_allclose(output.feature, expected, rtol=1e-12)
