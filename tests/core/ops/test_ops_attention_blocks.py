"""Attention block by block: equal to attention with all weights in memory, and to PyTorch's, in less memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.base import buffers
from dsinga.base.errors import UserError
from dsinga.ops import BACKENDS, attention_blocks, computes_in_blocks
from dsinga.ops.attention_blocks import attend_in_blocks, derive_in_blocks
from dsinga.ops.numpy.attention import NumpyAttention

NUMPY = BACKENDS["numpy"]()


@pytest.fixture
def onednn():
    try:
        return BACKENDS["onednn"]()
    except UserError as error:
        pytest.skip(str(error))


def draw_arrays(seed: int, batch: int, queries: int, keys: int, heads: int) -> list[np.ndarray]:
    """Return queries, keys, values and the gradient for the result, with 2 features a head, 3 of values."""
    rng = np.random.default_rng(seed)
    sizes = ((queries, 2), (keys, 2), (keys, 3), (queries, 3))
    return [rng.standard_normal((batch, steps, heads * size)) for steps, size in sizes]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(1, 2)),
    block=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 60)),
    hides=st.sampled_from(["nothing", "lengths", "any keys"]),
    seed=st.integers(0, 99),
)
def test_blocks_of_any_size_are_the_whole(sizes, block, hides, seed):
    """Also where a query sees no key, and where a whole block of queries sees none."""
    (batch, queries, keys, heads), rng = sizes, np.random.default_rng(seed)
    query, key, values, dy = draw_arrays(seed, *sizes)
    visible = None
    if hides == "lengths":
        visible = np.repeat(rng.integers(0, keys + 1, (batch, 1)), queries, axis=1)
    elif hides == "any keys":
        visible = rng.integers(0, keys + 1, (batch, queries))
    expected, weights = NUMPY.attention(query, key, values, heads, 0.7, visible, True)
    expected_grads = NUMPY.attention_grad(query, key, values, expected, weights, dy, heads, 0.7, visible)
    product = NUMPY.batched_product
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("QUERIES", "KEYS", "SCORES"), block, strict=True):
            patch.setattr(attention_blocks, name, value)
        y, sums = attend_in_blocks(product, query, key, values, heads, 0.7, visible)
        grads = derive_in_blocks(product, query, key, values, y, sums, dy, heads, 0.7, visible)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(grad, expected_grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("steps", [300, 600])
def test_long_causal_attention_is_pytorchs(steps: int, onednn: NumpyAttention):
    """torch.nn.functional.scaled_dot_product_attention in float64; here in float32."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, steps, 32)).astype(np.float32) for _ in range(4)]
    visible = np.tile(np.arange(1, steps + 1), (2, 1))
    y, workspace = onednn.attention(*arrays[:3], 2, 0.25, visible, True)
    assert isinstance(workspace, attention_blocks.BlockSums)
    grads = onednn.attention_grad(*arrays[:3], y, workspace, arrays[3], 2, 0.25, visible)
    query, keys, values, dy = (
        torch.tensor(x, dtype=torch.float64).reshape(2, steps, 2, 16).transpose(1, 2).requires_grad_() for x in arrays
    )
    theirs = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
    theirs.backward(dy.detach())
    for ours, expected in zip((y, *grads), (theirs, query.grad, keys.grad, values.grad), strict=True):
        whole = expected.detach().transpose(1, 2).reshape(2, steps, 32).numpy()
        np.testing.assert_allclose(ours, whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max())


def test_scores_far_apart_do_not_overflow(onednn: NumpyAttention):
    """The largest score of a query is in its last block of keys."""
    steps = 600
    query = np.full((1, steps, 4), 300, np.float32)
    keys = np.linspace(-300, 300, steps * 4, dtype=np.float32).reshape(1, steps, 4)
    y, _ = onednn.attention(query, keys, keys, 1, 1.0, None, False)
    np.testing.assert_allclose(y, np.broadcast_to(keys[:, -1:], y.shape), rtol=1e-5)


def test_memory_grows_with_the_steps_not_with_their_square(onednn: NumpyAttention, monkeypatch: pytest.MonkeyPatch):
    """1,024 steps, whose weights alone would be 4 MiB."""
    monkeypatch.setattr(attention_blocks, "QUERIES", 64)
    monkeypatch.setattr(attention_blocks, "KEYS", 64)
    monkeypatch.setattr(buffers, "SMALLEST", 1 << 40)  # so that all arrays come from numpy, whose memory is traced
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((1, 1024, 8)).astype(np.float32) for _ in range(2))
    tracemalloc.start()
    y, workspace = onednn.attention(x, x, x, 1, 1.0, None, True)
    onednn.attention_grad(x, x, x, y, workspace, dy, 1, 1.0, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_few_keys_and_single_queries_are_computed_whole():
    assert not computes_in_blocks(256, 256)
    assert not computes_in_blocks(1, 4096)
    assert computes_in_blocks(257, 257)
