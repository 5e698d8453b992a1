"""Stacks of restricted Boltzmann machines and the auto-encoder that they unfold into; the multi-modal net."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.addons.retrieval import chance, mean_average_precision
from dsinga.data import write_store
from dsinga.job import Job, Phase
from dsinga.layers import RecordInfo
from dsinga.models import mdnn
from dsinga.net import NeuralNet, create_net


def net_of(job: Job) -> NeuralNet:
    store = job.net.layer[0].store_conf
    return create_net(job.net, Phase.kTrain, {"data": RecordInfo(tuple(store.shape), store.batchsize[0])})


def test_the_machines_have_every_param_that_the_auto_encoder_starts_from():
    machines = [net_of(models.rbm(n)) for n in (1, 2, 3, 4)]
    trained = {name: param.shape for net in machines for name, param in net.params.items() if param.lr_scale}
    assert {name: param.shape for name, param in net_of(models.autoencoder()).params.items()} == trained
    assert sum(np.prod(shape) for shape in trained.values()) == 784_000 + 500_000 + 125_000 + 7_500 + 784 + 3_530


def test_a_stack_is_trained_by_its_functions(tmp_path: Path):
    rng = np.random.default_rng(0)
    images = np.where(rng.random((200, 16)) < rng.random((4, 16))[rng.integers(0, 4, 200)], 255, 0).astype(np.uint8)
    for part in ("train", "test"):
        write_store(tmp_path / f"{part}_data.zarr", [(images, None)])
    sizes, common = (16, 12, 2), {"data": str(tmp_path), "folder": str(tmp_path), "train_steps": 30, "test_steps": 2}
    for number in (1, 2):
        job = models.rbm(number, sizes, persistent=number == 1, cd_k=2, **common)
        dsinga.train(job, workspace=tmp_path / f"{job.name}-workspace", progress=False)
    job = models.autoencoder(sizes, **common)
    losses = dsinga.train(job, workspace=tmp_path / "own", progress=False).history.phase("test")[:, "loss"]
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Pairs of four classes: noisy points about centres, of 12 numbers as images and of 5 as texts."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("pairs")
    centres = {"I": rng.normal(size=(4, 12)), "T": rng.normal(size=(4, 5))}
    for part, count in (("tr", 300), ("te", 99)):
        labels = rng.integers(0, 4, count)
        for letter, centre in centres.items():
            noisy = centre[labels] + rng.normal(size=(count, centre.shape[1])) * 0.6
            write_store(folder / f"{letter}_{part}.zarr", [(noisy.astype(np.float32), labels)])
    return folder, labels


@pytest.mark.ci
def test_images_find_texts_of_their_class(pairs: tuple[Path, np.ndarray]) -> None:
    folder, labels = pairs
    job = mdnn((16,), (8,), code=6, classes=4, data=str(folder), train_steps=150, test_freq=150, test_steps=1)
    result = dsinga.train(job, workers=2, progress=False)
    last = result.history[-1]
    assert last["loss"] == pytest.approx(sum(last[f"{name}/loss"] for name in ("image_loss", "text_loss", "distance")))
    assert min(last["image_loss/accuracy"], last["text_loss/accuracy"]) > 0.8
    images, texts = (dsinga.predict(job, result.params, f"{name}_code") for name in ("image", "text"))
    assert mean_average_precision(images, texts, labels, labels) > 0.8 > 2 * chance(labels, labels)


def test_a_decoder_with_shared_weights_runs_without_its_encoder_labels() -> None:
    job = models.autoencoder([12, 6, 3], pretrained="", highest=1)
    x = np.random.default_rng(0).random((10, 12), np.float32)
    net = dsinga.nn.LocalNet(job, x)
    params = net.initial_params()
    code = net.predict(params, x, "Inner2")
    assert code.shape == (10, 3)
    assert net.forward(params, x).outputs.keys() == {"loss"}
    sigmoid = 1 / (1 + np.exp(-(x @ params["w1"].T + params["b12"])))
    np.testing.assert_allclose(code, sigmoid @ params["w2"].T + params["b22"], rtol=1e-4, atol=1e-5)


def test_the_last_machine_of_a_stack_is_gaussian_unless_told_otherwise():
    def gaussian(job: Job) -> list[bool]:
        return [layer.rbm_conf.gaussian for layer in job.net.layer if layer.rbm_conf]

    assert [gaussian(models.rbm(n)) for n in (1, 4)] == [[False, False], [False, True]]
    assert gaussian(models.rbm(4, binary=True)) == [False, False]
