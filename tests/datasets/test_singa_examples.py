"""SINGA 0.3's own example jobs train for two steps on random records.

The job files are not part of this repository: $DSINGA_SINGA_EXAMPLES is their folder. The table in
docs/howto/job-files.md says what works for each of them.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.addons.text.generation import generator
from dsinga.base import registry
from dsinga.checkpoint import read_params
from dsinga.data import import_records, write_store
from dsinga.training import initial_values
from tests.support.registries import restored_registry

FOLDER = Path(os.environ.get("DSINGA_SINGA_EXAMPLES", ""))
ROOT = Path(__file__).parents[2]
STEPS = ("train_steps=2", "disp_freq=1", "test_freq=2", "test_steps=1", "checkpoint_freq=0", "warmup_steps=0")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (FOLDER / "mnist").is_dir(), reason="DSINGA_SINGA_EXAMPLES is not a folder with SINGA's examples"
    ),
]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with stores at the paths where SINGA's tools would have written theirs."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for folder, shape in (("mnist", (28, 28)), ("cifar10", (3, 32, 32))):
        for part, count in (("train", 300), ("test", 200)):
            data = random.integers(0, 256, (count, *shape)).astype(np.uint8)
            write_store(f"examples/{folder}/{part}_data.zarr", [(data, random.integers(0, 10, count))])
    write_store("examples/cifar10/image_mean.zarr", [(np.full((1, 3, 32, 32), 127.5, np.float32), None)])
    return tmp_path


def train(name: str, *overrides: str) -> dsinga.Result:
    return dsinga.train(dsinga.load(FOLDER / name, [*STEPS, *overrides]), progress=False)


def assert_trained(result: dsinga.Result, phases: tuple[str, ...] = ("train", "test")) -> None:
    assert result.step == 2
    assert all(np.isfinite(value).all() for value in result.params.values())
    assert {row["phase"] for row in result.history} == set(phases)
    assert all(np.isfinite(row["loss"]) for row in result.history if "loss" in row)


FEED_FORWARD = [
    *("mnist/job.conf", "mnist/conv.conf", "cifar10/job.conf", "cifar10/hybrid.conf"),
    *("cifar10/cudnn.conf", "cifar10/cudnn_bm.conf", "cifar10/cudnn_hybrid.conf"),
]


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_feed_forward_nets(records: Path, name: str):
    assert_trained(train(name))


@pytest.mark.parametrize("name", ["alexnet/job.conf", "alexnet/cudnn.conf"])
def test_alexnet_with_few_images(records: Path, name: str):
    random, overrides = np.random.default_rng(0), []
    for part, phase in (("train", "kTrain"), ("val", "kTest")):
        images = random.integers(0, 256, (8, 3, 256, 256)).astype(np.uint8)
        write_store(f"{part}.zarr", [(images, random.integers(0, 1000, 8))])
        store = f"neuralnet.layer[data,{phase}].store_conf"
        overrides += [f'{store}.path="{part}.zarr"', f"{store}.mean_file=", f"{store}.batchsize=4", f"{store}.backend="]
    assert_trained(train(name, *overrides))


def test_boltzmann_machines_and_the_auto_encoder_that_starts_from_them(records: Path):
    """Each job names the checkpoints of the earlier jobs after 6000 steps; here these end after two."""
    for number in (1, 2, 3, 4):
        assert_trained(train(f"rbm/rbm{number}.conf", *after_two_steps(range(number - 1, 0, -1))))
    result = train("rbm/autoencoder.conf", *after_two_steps((4, 3, 2, 1)))
    assert_trained(result)
    before = read_params("examples/rbm/rbm1/checkpoint/step2")
    assert np.abs(result.params["w1"] - before["w1"]).max() < 0.1, "the auto-encoder starts from the machines' params"


def after_two_steps(machines: Iterable[int]) -> list[str]:
    paths = (f"examples/rbm/rbm{number}/checkpoint/step2-worker0" for number in machines)
    return [f'checkpoint_path[{index}]="{path}"' for index, path in enumerate(paths)]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A working directory with a text and its 101 characters at the paths of the jobs."""
    monkeypatch.chdir(tmp_path)
    Path("examples/char-rnn").mkdir(parents=True)
    characters = "".join(map(chr, range(32, 127))) + "\n\t\x01\x02\x03\x04"
    text = "".join(np.random.default_rng(0).choice(list(characters), 50 * 110))
    Path("examples/char-rnn/linux_input.txt").write_text(text)
    Path("examples/char-rnn/vocab.txt").write_text(characters)
    return text


def test_char_rnn(text: str):
    assert_trained(train("char-rnn/job.conf", "test_freq=0"), ("train",))


def test_a_char_rnn_generates_text(text: str):
    """SINGA's job.conf has one recurrent layer and sample.conf two, so this test does not use trained params."""
    job = dsinga.load(FOLDER / "char-rnn/sample.conf")
    params = initial_values(generator(job.neuralnet, 101).net.params, seed=0)
    sample = dsinga.generate(job, params, text[:10], 20)
    assert len(sample) == 20
    assert set(sample) <= set(text)


def test_rnnlm_with_its_layers_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The example's layers are in C++; datasets/rnnlm has them as a Python file to import."""
    monkeypatch.chdir(tmp_path)
    words = [f"word{number}" for number in np.random.default_rng(0).integers(400, size=3000)]
    for part in ("train", "valid"):
        Path(part).write_text("\n".join(" ".join(words[at : at + 15]) for at in range(0, 3000, 15)) + "\n")
    import_records("rnnlm", ".", "examples/rnnlm")
    with restored_registry():
        registry.import_file(ROOT / "datasets" / "rnnlm" / "rnnlm.py")
        result = train("rnnlm/job.conf", "test_freq=0", "validate_freq=2", "validate_steps=1")
    assert_trained(result, ("train", "val"))


def test_the_page_names_every_job():
    page = (ROOT / "docs" / "howto" / "job-files.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)/` \| (.*) \|$", page, flags=re.MULTILINE)
    names = [f"{folder}/{job}.conf" for folder, jobs in rows for job in re.findall(r"`(\w+)`", jobs)]
    assert sorted(names) == sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("**/*.conf"))
