"""What ``python -m tools.benchmarks.bits`` does with trained params: evaluate, predict, generate, translate, search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client

import dsinga
from dsinga import Job, models
from dsinga.data import open_store
from dsinga.extensions import EarlyStopping, KeepBest
from dsinga.job import ClusterConf
from tools.benchmarks.bits_jobs import JOBS
from tools.benchmarks.bits_report import Call, Report, report
from tools.benchmarks.bits_stores import SENTENCES


def trained_job(name: str, folder: Path) -> Job:
    """Return the job of an earlier run, whose newest checkpoint is in its workspace."""
    return JOBS[name].job(folder).replace(cluster=ClusterConf(workspace=str(folder / f"{name}-workspace")))


def used(name: str, *layers: str, processes: bool = False) -> Call:
    """Return the call that evaluates a trained job and predicts the features of layers."""

    def compute(folder: Path, client: Client | None) -> Report:
        job = trained_job(name, folder)
        features = {layer: dsinga.predict(job, None, layer, client=client) for layer in layers}
        pairs = list(dsinga.predict_with_labels(job, None, layers[0], client=client))
        labels = [labels for _, labels in pairs if labels is not None]
        rows = [dsinga.evaluate(job, None, phase, client) for phase in ("train", "test")]
        return report({**features, "labels": np.concatenate(labels)}, rows)

    return Call(compute, processes=processes, after=(name,))


def of_arrays(processes: bool = False) -> Call:
    """Return the call that trains, evaluates and predicts on arrays, and predicts a dask array lazily."""

    def compute(folder: Path, client: Client | None) -> Report:
        rng = np.random.default_rng(13)
        x, y = rng.normal(size=(200, 20)).astype(np.float32), rng.integers(0, 4, 200)
        job = models.mlp([12], inputs=20, classes=4, batchsize=25, train_steps=24, disp_freq=6, validate_freq=6)
        data = {"train": (x[:150], y[:150]), "val": (x[150:], y[150:]), "test": (x[100:], y[100:])}
        extensions = [EarlyStopping("val/loss", patience=2), KeepBest("val/loss")]
        result = dsinga.train(job, client, data=data, extensions=extensions, progress=False)
        further = dsinga.train(job, client, data=data, params=result.params, epochs=1, progress=False)
        lazy = dsinga.predict_lazily(job, result, "act1", da.from_array(x, chunks=(60, 20)))
        arrays = {
            **{f"further-{name}": value for name, value in further.params.items()},
            "act1": dsinga.predict(job, result, "act1", client=client, data=x),
            "lazy": client.compute(lazy).result() if client else lazy.compute(),
        }
        test = dsinga.evaluate(job, result, client=client, data=(x[150:], y[150:]))
        return report({**result.params, **arrays}, [*result.history, *further.history, test])

    return Call(compute, processes=processes)


def generated(name: str, beginning: str) -> Call:
    """Return the call that continues a text by a trained net, at two temperatures."""

    def compute(folder: Path, client: Client | None) -> Report:
        job = trained_job(name, folder)
        texts = [dsinga.generate(job, None, beginning, 60, temperature, seed=8) for temperature in (0.0, 0.8)]
        return report({f"text{k}": np.array(text) for k, text in enumerate(texts)})

    return Call(compute, after=(name,))


def translated(name: str, **sizes: Any) -> Call:
    """Return the call that trains a translator for a moment, and translates by beam search."""

    def compute(folder: Path, client: Client | None) -> Report:
        counts = [len(open_store(folder / "pairs-of-words/train" / f"{side}.zarr").vocabulary) for side in SIDES]
        job = getattr(models, name)(
            *counts, str(folder / "pairs-of-words"), batchsize=20, train_steps=60, disp_freq=20, **sizes
        )
        job.updater.learning_rate.base_lr = 0.02
        result = dsinga.train(job, progress=False)
        texts = [" | ".join(dsinga.translate(job, result, SENTENCES, beam)) for beam in (1, 4)]
        return report({**result.params, "greedy": np.array(texts[0]), "beam": np.array(texts[1])}, result.history)

    return Call(compute)


def searched(folder: Path, client: Client | None) -> Report:
    """Try four settings of a job, and learning rates from low to high."""
    job = JOBS["mlp"].job(folder)
    space = {"updater.learning_rate.base_lr": [0.01, 0.05], "seed": [1, 2]}
    result = dsinga.search(job, space, client, progress=False)
    rates = dsinga.find_learning_rate(job, client=client, steps=20, progress=False)
    arrays = {**result.best_result.params, "rates": np.array(rates.rates), "losses": np.array(rates.losses)}
    return report(arrays, [{key: row[key] for key in ("number", "state", "score", "steps")} for row in result])


SIDES = ("source", "target")

RESULTS: dict[str, Call] = {
    "use-mlp": used("mlp", "act1", "loss"),
    "use-small": used("rows-two", "pool", "ip"),
    "use-small-processes": used("mixed-processes", "pool", "ip", processes=True),
    "use-crf": used("crf", "scores", "entities"),
    "use-arrays": of_arrays(),
    "use-arrays-processes": of_arrays(processes=True),
    "generate-characters": generated("char-gru", "abc"),
    "generate-characters-lstm": generated("char-lstm", ""),
    "translate-gru": translated("gru_translator", embedding=8, hidden=8),
    "translate-transformer": translated("transformer", width=8, heads=2, hidden=12, blocks=1),
    "search": Call(searched),
    "search-processes": Call(searched, processes=True),
}
