"""The job files and the data that come with the repository."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import rl
from dsinga.data import RecordStore
from dsinga.job import Phase, check, load, loads, to_text, training_phases
from dsinga.rl.from_job import agent_of

FOLDER = Path(__file__).parents[2] / "datasets"
ALL_JOBS = sorted(FOLDER.glob("*/*.conf"))
JOBS = [path for path in ALL_JOBS if load(path).reinforcement is None]
AGENTS = [path for path in ALL_JOBS if path not in JOBS]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_job_is_valid_in_every_phase(path):
    job = load(path)
    check(job, [Phase.kTrain, Phase.kVal, Phase.kTest])
    assert job.seed
    assert job.epochs or min(job.train_steps, job.disp_freq, job.test_freq) > 0
    assert Phase.kTest in training_phases(job)
    assert loads(to_text(job)) == job
    for store in (layer.store_conf for layer in job.neuralnet.layer if layer.store_conf):
        assert not Path(store.path).is_absolute()
        assert ".." not in Path(store.path).parts
        assert store.path.endswith(".zarr")
        assert store.backend is None


@pytest.mark.parametrize("path", AGENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_job_of_an_agent_fits_its_environment(path):
    job = load(path)
    if job.reinforcement.environment.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    spaces = rl.make_environments(job.reinforcement.environment, 1).spaces
    assert agent_of(job, spaces).algorithm.params
    assert job.seed
    assert loads(to_text(job)) == job


def test_the_digits_are_those_of_scikit_learn_each_once():
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images_and_labels = []
    for name, count in (("train_data.zarr", 1437), ("test_data.zarr", 360)):
        store = RecordStore(FOLDER / "digits" / name)
        data, labels = store.read(np.arange(len(store)))
        assert (len(store), store.shape, store.dtype) == (count, (1, 8, 8), np.uint8)
        assert store.classes == tuple("0123456789")
        assert np.bincount(labels, minlength=10).min() > count / 15  # all classes occur
        images_and_labels += pairs(data, labels)
    assert sorted(images_and_labels) == sorted(pairs(digits.images.astype(np.uint8), digits.target))


def pairs(images, labels):
    return [(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]


def test_the_digits_job_reaches_the_accuracy_of_its_readme():
    result = dsinga.train(FOLDER / "digits" / "job.conf", workers=1, progress=False)
    last = [row for row in result.history if row["phase"] == "test"][-1]
    assert last["step"] == 600
    assert last["accuracy"] >= 0.97
    assert sum(value.size for value in result.params.values()) == 6090
