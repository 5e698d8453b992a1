"""A run opens each of its stores once, through whatever face and on whatever engine."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

import dsinga
from dsinga import cluster, nn
from dsinga.base.registry import lookup, register
from dsinga.commands.cli import main_group
from dsinga.data import DataSource
from dsinga.job import Job, loads, to_text
from dsinga.loop.initial_state import RunOptions
from tests.support.observers import Silent
from tests.support.registries import restored_registry

X = np.random.default_rng(0).random((40, 4), np.float32)
Y = np.arange(40) % 3
Counts = Counter[str]
JOB = """
name: "counted" train_steps: 4 disp_freq: 2 test_freq: 2 validate_freq: 2 cluster { }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput exclude: kVal store_conf { backend: "Counted" batchsize: 20 } }
  layer { name: "data" type: kRecordInput include: kVal store_conf { backend: "Counted" path: "val" batchsize: 20 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w" init { type: kUniform low: -0.1 high: 0.1 } } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    """Count openings of the source "Counted"."""
    counts: Counts = Counter()
    monkeypatch.chdir(tmp_path)
    Path("val").touch()
    with restored_registry():

        @register("source", "Counted")
        class Counted(DataSource):
            """Records in memory; opening them is counted by their path."""

            needs_path = False

            def open(self) -> Any:
                counts[f"open {Path(self.path).name if self.path else 'train'}"] += 1
                return X, Y

        yield counts


def job(**fields: Any) -> Job:
    return loads(JOB).replace(**fields)


def resume_with_another_batch(client: Any, folder: Path, counts: Counts) -> None:
    """Train two epochs, and count how a third one goes on with batches of another size."""
    epochs = {"train_steps": 0, "checkpoint_freq": 2}
    dsinga.train(job(epochs=2, **epochs), client, workspace=folder, progress=False)
    counts.clear()
    other = loads(JOB.replace("batchsize: 20", "batchsize: 10")).replace(epochs=3, **epochs)
    dsinga.train(other, client, workspace=folder, progress=False, resume=True)


def command(client: Any, folder: Path, _: Counts) -> None:
    (folder / "job.conf").write_text(to_text(job()))
    address = [] if client is None else ["--scheduler", client.scheduler.address]
    result = CliRunner().invoke(
        main_group, ["train", str(folder / "job.conf"), "--workspace", str(folder / "run"), *address]
    )
    assert result.exit_code == 0, result.output


def fit(client: Any, folder: Path, counts: Counts) -> None:
    model = nn.Sequential([nn.Dense(3)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    source = lookup("source", "Counted")
    model.fit(source(), validation_data=source("val"), epochs=2, client=client, progress=False)


PARAMS = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(3, np.float32)}
TRAINED = {"open train": 1, "open val": 1}
USED = {"open train": 1}
Face = Callable[[Any, Path, Counts], Any]
FACES: dict[str, tuple[dict[str, int], Face]] = {
    "train": (TRAINED, lambda client, *_: dsinga.train(job(), client, progress=False)),
    "epochs": (TRAINED, lambda client, *_: dsinga.train(job(epochs=2, train_steps=0), client, progress=False)),
    "auto": (
        TRAINED,
        lambda client, *_: dsinga.train(
            loads(JOB.replace("neuralnet {", "neuralnet { partition: auto")), client, workers=2, progress=False
        ),
    ),
    "resume": (TRAINED, resume_with_another_batch),
    "submit": (TRAINED, lambda client, *_: dsinga.submit(job(), client).result(60)),
    "command": (TRAINED, command),
    "fit": (TRAINED, fit),
    "evaluate": (USED, lambda client, *_: dsinga.evaluate(job(), PARAMS, client=client)),
    "predict": (USED, lambda client, *_: dsinga.predict(job(), PARAMS, "ip", client=client)),
}


@pytest.mark.parametrize("on_a_cluster", [False, True])
@pytest.mark.parametrize("face", FACES)
def test_a_face(face: str, on_a_cluster: bool, counts: Counts, tmp_path: Path, request: Any) -> None:
    expected, call = FACES[face]
    call(request.getfixturevalue("threads") if on_a_cluster else None, tmp_path, counts)
    assert counts == expected


def test_the_driver_of_a_cluster(counts: Counts, threads: Client) -> None:
    cluster.train(job(), threads, Silent(), RunOptions())
    assert counts == TRAINED
