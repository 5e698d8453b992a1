"""Layers that prepare images and layers that write files, in every phase, and in validations of training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga.api import evaluate, train
from dsinga.api.runners import THIS_PROCESS
from dsinga.data import open_store, write_store
from dsinga.job import Job, loads
from tests.support.extension_runs import validating


@pytest.mark.parametrize("place", ["cluster", "this process"])
@pytest.mark.parametrize("include", ["include: kVal", "", "include: kTest"])
def test_validations_write_the_files_of_layers_that_no_test_writes(
    job: Job, threads: Client, tmp_path: Path, include: str, place: str
) -> None:
    client: Any = threads if place == "cluster" else THIS_PROCESS
    text = (
        f'layer {{ name: "text" type: kCSVOutput srclayers: "ip" {include} store_conf {{ path: "{tmp_path}/o.csv" }} }}'
    )
    more = loads(f"neuralnet {{ {text} }}").neuralnet.layer
    net = job.neuralnet.replace(layer=[*job.neuralnet.layer, *more])
    job = validating(job.replace(neuralnet=net)).replace(train_steps=8, test_freq=0)
    train(job, client, progress=False)
    assert (tmp_path / "o.csv").exists() == (include != "include: kTest")
    if include == "include: kVal":
        return
    lines = []
    tested = job.replace(test_freq=8, test_steps=1, validate_freq=8, validate_steps=2)
    train(tested, client, progress=False, extensions=[lambda *_: lines.append(count_lines(tmp_path / "o.csv"))])
    assert lines[-1] == 64  # of the one batch of the test, not of the two of the validation


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


IMAGES_IN = """
  layer {{ name: "data" type: kRecordInput include: {phase}
    store_conf {{ path: "{name}.zarr" batchsize: 7 shape: 1 shape: 8 shape: 8 }} }}
  layer {{ name: "csv" type: kCSVOutput srclayers: "crop" include: {phase}
    store_conf {{ path: "{folder}/{name}.csv" }} }}
"""
IMAGES_ALL = """
  layer { name: "rgb" type: kRGBImage srclayers: "data" rgbimage_conf { scale: 0.5 cropsize: 6 mirror: true } }
  layer { name: "crop" type: kImagePreprocess srclayers: "rgb" rgbimage_conf { cropsize: 4 } }
"""
PHASES = {"train": "kTrain", "val": "kVal", "test": "kTest", "deploy": "kDeploy"}


@pytest.mark.parametrize(
    ("client", "place"), [("processes", "cluster"), ("threads", "this process")], indirect=["client"]
)
@pytest.mark.parametrize("name", PHASES)
def test_images_are_cropped_and_written_in_every_phase(client: Client, tmp_path: Path, name: str, place: str) -> None:
    """Outside training the crops are those of the middle; without labels in kDeploy."""
    for number, part in enumerate(PHASES, start=1):
        images = np.random.default_rng(number).integers(0, 255, (10 * number, 1, 8, 8)).astype(np.uint8)
        labels = None if part == "deploy" else np.zeros(len(images), int)
        write_store(str(tmp_path / f"{part}.zarr"), [(images, labels)])
    layers = "".join(IMAGES_IN.format(phase=phase, name=part, folder=tmp_path) for part, phase in PHASES.items())
    job = loads(f"neuralnet {{ {layers} {IMAGES_ALL} }}", str(tmp_path / "job.conf"))
    evaluate(job, {}, name, client if place == "cluster" else THIS_PROCESS)
    rows = np.loadtxt(tmp_path / f"{name}.csv", delimiter=",").reshape(-1, 4, 4)
    images = open_store(str(tmp_path / f"{name}.zarr")).read(range(len(rows)))[0][:, 0]
    assert len(rows) == 10 * (1 + list(PHASES).index(name))
    middle = images[:, 2:6, 2:6] * 0.5
    if name != "train":
        np.testing.assert_array_equal(rows, middle)
        return
    assert (rows != middle).any()
    for row, image in zip(rows, images * 0.5, strict=True):
        places = [image[top : top + 4, left : left + 4] for top in range(5) for left in range(5)]
        assert any((row == turned).all() for place in places for turned in (place, place[:, ::-1]))
