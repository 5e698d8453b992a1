"""Trains a net of dsinga on the made table, on the cluster on which boosted trees are trained."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.extensions import LambdaCallback
from tools.benchmarks.made_table import TARGET
from tools.benchmarks.watched_cluster import Run

BATCH, WIDTH = 8192, 64


def net_of(records: Any) -> nn.Model:
    """Return a net of two hidden layers on numbers, flags and an embedding of each category."""
    numbers, flags, _, sizes = records.parts
    data, plain = nn.Input(records.shape, name="data"), len(numbers) + len(flags)
    parts = [nn.Layer("kIndex", index=f":{plain}", name="numbers")(data)]
    for place, size in enumerate(sizes, plain):
        code = nn.Layer("kIndex", index=f"{place}", name=f"code{place}")(data)
        parts.append(nn.Embedding(size, min(16, 1 + size // 2), name=f"embedding{place}")(code))
    x = nn.Concatenate(axis=1, name="inputs")(parts)
    for number in (1, 2):
        x = nn.Dense(WIDTH, activation="relu", name=f"dense{number}")(x)
    model = nn.Model(data, nn.Dense(2, activation="softmax", name="classes")(x))
    model.compile(nn.AdamW(0.003, weight_decay=1e-4), "sparse_categorical_crossentropy")
    return model


def train(client: Client, folder: Path, test: Path | None, epochs: int = 1) -> Any:
    """Train on a folder; return the area under the curve of a test folder."""
    from sklearn.metrics import roc_auc_score

    records = dsinga.table(folder, label=TARGET)
    model = net_of(records)
    model.fit(records, epochs=epochs, batch_size=BATCH, client=client, progress=False)
    if test is None:
        return None
    held = dsinga.table(test, columns=records.definition)
    return float(roc_auc_score(held.read_labels(np.arange(len(held))), model.predict(held.without_labels())[:, 1]))


def same_after_a_kill(folder: Path, watch: Callable[[Callable[[Client], Any]], Run], seed: int) -> tuple[int, bool]:
    """Train undisturbed, then with a worker process that is killed at a random step of the first half.

    ``watch`` runs a function on a cluster of its own. Return the step, and whether the params are equal.
    """
    rng, records = random.Random(seed), dsinga.table(folder, label=TARGET)
    victim, step = rng.randrange(2), rng.randrange(1, len(records) // BATCH // 2)

    def weights(client: Client, *callbacks: LambdaCallback) -> list[np.ndarray]:
        model = net_of(records)
        model.fit(records, epochs=1, batch_size=BATCH, client=client, callbacks=[*callbacks], progress=False)
        return model.get_weights()

    def disturbed(client: Client) -> list[np.ndarray]:
        process = list(client.run(os.getpid).values())[victim]

        def end_process(batch: int, logs: Any) -> None:
            if batch == step:
                os.kill(process, signal.SIGKILL)

        return weights(client, LambdaCallback(on_train_batch_end=end_process))

    undisturbed, run = watch(weights), watch(disturbed)
    assert run.killed == 1, run
    return step, all(map(np.array_equal, run.result, undisturbed.result))
