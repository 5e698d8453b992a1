"""TabM of the package ``tabm`` as its authors train it: piecewise-linear embeddings, AdamW, the best of validation.

Sizes, rates and decay are those of the package's documentation and of arXiv 2410.24210: k 32, two hidden layers of 512
units, dropout 0.1, 48 bins, embeddings of 16 numbers, rate 0.002, decay 0.0003, batches of 256 and patience 16. A fifth
is held for validation, and columns of more than 200 categories are left out, for they are one-hot.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins
from sklearn.preprocessing import QuantileTransformer
from tabm import TabM
from torch.nn import functional

from tools.benchmarks.table_peers import part_for_validation

MOST_ONE_HOT, BATCH, PATIENCE, RATE, DECAY, HELD = 200, 256, 16, 0.002, 3e-4, 0.2


def arrays(x: pd.DataFrame, tested: pd.DataFrame, seed: int) -> tuple[list[list[torch.Tensor]], list[int]]:
    """Return numbers made normal and codes of categories of both frames, and how many codes each category has."""
    random = np.random.default_rng(seed)
    numbers = x.select_dtypes("float").columns
    learnt = x[numbers].to_numpy()
    noise = random.normal(0, 1e-5, learnt.shape) * np.maximum(learnt.std(0), 1e-12)
    quantiles = max(min(len(learnt) // 30, 1000), 10)
    normal = QuantileTransformer(n_quantiles=quantiles, output_distribution="normal", subsample=10**9)
    normal.fit(learnt + noise)
    names = [n for n in x.select_dtypes("category").columns if len(x[n].cat.categories) <= MOST_ONE_HOT]
    both = []
    for frame in (x, tested):
        both.append([torch.tensor(normal.transform(frame[numbers].to_numpy()), dtype=torch.float32)])
        if names:
            codes = [frame[name].cat.codes.to_numpy(np.int64) + 1 for name in names]
            both[-1].append(torch.tensor(np.stack(codes, 1)))
    return both, [len(x[name].cat.categories) + 1 for name in names]


def net(numbers: torch.Tensor, sizes: list[int], classes: int, **options: Any) -> torch.nn.Module:
    """Return a TabM net whose embeddings have bins at the quantiles of some records."""
    embeddings = PiecewiseLinearEmbeddings(compute_bins(numbers, n_bins=48), 16, activation=False, version="B")
    return TabM.make(
        n_num_features=numbers.shape[1],
        cat_cardinalities=sizes,
        d_out=classes or 1,
        num_embeddings=embeddings,
        **options,
    )


def predictions(
    x: pd.DataFrame,
    tested: pd.DataFrame,
    y: np.ndarray,
    classes: int,
    seed: int,
    longest: int = 1000,
    **options: Any,
) -> np.ndarray:
    """Train a net until validation stops it, and return what it predicts for the tested records."""
    torch.manual_seed(seed)
    few, held = part_for_validation(len(x), y, classes, HELD, seed)
    differing = x.columns[x.iloc[few].nunique() > 1]  # others have no bins
    (learnt, unseen), sizes = arrays(x[differing], tested[differing], seed)
    centre, scale = (0.0, 1.0) if classes else (y[few].mean(), y[few].std())
    targets = torch.tensor(y if classes else (y - centre) / scale, dtype=torch.long if classes else torch.float32)
    model = net(learnt[0][few], sizes, classes, **options)
    train(model, learnt, targets, few, held, classes, longest)
    found = outputs(model, unseen, classes).numpy()
    return found if classes else found * scale + centre


def train(model: torch.nn.Module, data: Any, targets: Any, few: Any, held: Any, classes: int, longest: int) -> None:
    """Train a net for the mean loss of its members, and leave it with the params that were best on what is held."""
    updater = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    best, waited, kept = math.inf, 0, model.state_dict()
    for _ in range(longest):
        model.train()
        for rows in torch.tensor(few)[torch.randperm(len(few))].split(BATCH):
            updater.zero_grad(set_to_none=True)
            loss_of(model(*(part[rows] for part in data)), targets[rows], classes).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            updater.step()
        found = outputs(model, [part[held] for part in data], classes)
        score = functional.nll_loss(found.clamp_min(1e-12).log(), targets[held]) if classes else None
        score = float(functional.mse_loss(found, targets[held]) if score is None else score)
        best, waited = (score, 0) if score < best else (best, waited + 1)
        if not waited:
            kept = {name: value.clone() for name, value in model.state_dict().items()}
        elif waited > PATIENCE:
            break
    model.load_state_dict(kept)


def loss_of(found: torch.Tensor, targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the mean of the losses of all members."""
    members = targets.repeat_interleave(found.shape[1])
    found = found.flatten(0, 1)
    return functional.cross_entropy(found, members) if classes else functional.mse_loss(found[:, 0], members)


def outputs(model: torch.nn.Module, data: Any, classes: int) -> torch.Tensor:
    """Return the members' mean probabilities or numbers for records."""
    model.eval()
    with torch.inference_mode():
        found = torch.cat([model(*parts) for parts in zip(*(part.split(1024) for part in data), strict=True)])
    return found.softmax(-1).mean(1) if classes else found[..., 0].mean(1)
