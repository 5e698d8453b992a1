"""Embeddings whose gradients are whole arrays move as those of PyTorch do; others keep the rows that a batch lacks."""

import numpy as np
import pytest

from dsinga import nn

RNG = np.random.default_rng(0)
CODES = RNG.integers(5, size=(12, 4)).astype(np.uint8)  # of a table of 9 rows
Y = CODES.max(axis=1) % 2
STEPS = 6


def table_and_top(dense: bool) -> nn.Sequential:
    table = nn.Embedding(9, 3, dense_gradient=dense, name="table")
    model = nn.Sequential([nn.Input(4), table, nn.GlobalAveragePooling1D(), nn.Dense(2, name="top")])
    model.compile(nn.Adam(0.05, weight_decay=0.1), "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_dense_gradient_moves_all_rows_as_torch_does(workers):
    torch = pytest.importorskip("torch")
    model = table_and_top(dense=True)
    start = {name: value.copy() for name, value in model.params.items()}
    model.fit(CODES, Y, batch_size=12, train_steps=STEPS, workers=workers, progress=False)
    table = torch.nn.Parameter(torch.tensor(start["table_weight"]))
    weight, bias = (torch.nn.Parameter(torch.tensor(start[f"top_{role}"])) for role in ("weight", "bias"))
    optimizer = torch.optim.Adam([table, weight, bias], 0.05, eps=1e-7, weight_decay=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scores = torch.nn.functional.linear(table[torch.tensor(CODES.astype(int))].mean(dim=1), weight, bias)
        torch.nn.functional.cross_entropy(scores, torch.tensor(Y.astype(int))).backward()
        optimizer.step()
    assert not np.array_equal(model.params["table_weight"][5:], start["table_weight"][5:])
    np.testing.assert_allclose(model.params["table_weight"], table.detach().numpy(), atol=2e-5)
    np.testing.assert_allclose(model.params["top_weight"], weight.detach().numpy(), atol=2e-5)


def test_without_it_rows_that_no_batch_has_keep_their_bits():
    model = table_and_top(dense=False)
    start = model.params["table_weight"].copy()
    model.fit(CODES, Y, batch_size=12, train_steps=STEPS, progress=False)
    np.testing.assert_array_equal(model.params["table_weight"][5:], start[5:])
