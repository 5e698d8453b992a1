"""Sequence taggers train to the params of one worker, wherever their layers and labels are placed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga.data import write_store
from dsinga.job import Job
from dsinga.models import bigru_crf

ROWS, STEPS, WORDS, TAGS = 24, 6, 11, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Stores of sentences of different lengths, whose tags follow from their words."""
    folder = tmp_path_factory.mktemp("sentences")
    rng = np.random.default_rng(0)
    beyond = np.arange(STEPS) >= rng.integers(1, STEPS + 1, ROWS)[:, None]
    words = np.where(beyond, -1, rng.integers(0, WORDS, (ROWS, STEPS))).astype(np.int32)
    for part in ("train", "val"):
        write_store(folder / part / "words.zarr", [(words, np.where(beyond, -1, words % TAGS))])
    return folder


def tagger(folder: Path, crf: bool, **fields: dict[str, int]) -> Job:
    """The job; ``fields`` are those of layers, by name."""
    often = {"train_steps": 6, "disp_freq": 0, "validate_freq": 6, "validate_steps": 2, "test_freq": 0}
    job = bigru_crf({"words": WORDS}, TAGS, str(folder), crf=crf, hidden=4, batchsize=9, **often)
    layers = [layer.replace(**fields.get(layer.name, {})) for layer in job.net.layer]
    return job.replace(neuralnet=job.net.replace(layer=layers))


@pytest.mark.parametrize("crf", [True, False], ids=["crf", "softmax"])
def test_two_workers_train_as_one(folder: Path, threads: Client, crf: bool):
    single = dsinga.train(tagger(folder, crf), threads, workers=1, progress=False)
    located = {"scores": {"location": 1}, "tags": {"location": 1}, "entities": {"location": 1}}
    for fields in ({}, located):
        pair = dsinga.train(tagger(folder, crf, **fields), threads, workers=2, progress=False)
        for name, value in single.params.items():
            np.testing.assert_allclose(pair.params[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        (row,), (expected,) = (
            [last for last in run.history if (last["step"], last["phase"]) == (6, "val")] for run in (pair, single)
        )
        for name in ("loss", "accuracy", "precision", "recall", "f1"):
            assert row.get(name) == pytest.approx(expected.get(name), rel=1e-4), name
