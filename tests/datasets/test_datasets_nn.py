"""The scripts beside the job files: the same nets, and what SINGA's Python examples do."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.data import import_records, open_store, write_store
from dsinga.job import Job, LayerConf, Phase

FOLDER = Path(__file__).parents[2] / "datasets"


def script(name: str) -> dict:
    """Return the names of a script of the folder ``datasets``."""
    return runpy.run_path(str(FOLDER / name))


def net(job: Job) -> list[LayerConf]:
    """Return the layers of training, without what says in which phases they are and where data are."""
    return [plain(layer) for layer in job.neuralnet.layer if layer.in_phase(Phase.kTrain)]


def plain(layer: LayerConf) -> LayerConf:
    """Return a layer without its phases, the path of its store, and what are defaults."""
    changes: dict = {"include": [], "exclude": []}
    if layer.store_conf:
        changes["store_conf"] = layer.store_conf.replace(path=None)
    if layer.pooling_conf:
        changes["pooling_conf"] = layer.pooling_conf.replace(stride=layer.pooling_conf.stride or 2)
    if layer.convolution_conf:
        conf = layer.convolution_conf
        changes["convolution_conf"] = conf.replace(stride=conf.stride or 1, pad=conf.pad or 0)
    params = [
        None if param.init and param.init.type.name == "kConstant" and not param.init.value else param.init
        for param in layer.param
    ]
    named = [param.replace(init=init) for param, init in zip(layer.param, params, strict=True)]
    return layer.replace(**changes, param=named)


@pytest.mark.parametrize(
    ("name", "function", "of_file", "batch_size"),
    [
        ("mnist/mlp.py", "mlp", "mnist/mlp.conf", 64),
        ("mnist/convnet.py", "convnet", "mnist/convnet.conf", 64),
        ("cifar10/convnet.py", "convnet", "cifar10/convnet.conf", 100),
    ],
)
def test_the_net_in_python_is_that_of_the_job_file(name, function, of_file, batch_size):
    expected = dsinga.load(FOLDER / of_file)
    job = script(name)[function]().job(batch_size=batch_size, train_steps=1)
    assert net(job) == net(expected)
    assert job.updater == expected.updater


def test_machines_and_their_auto_encoder_are_those_of_the_models():
    names = script("mnist/autoencoder.py")
    sizes = (784, 400, 100, 2)
    machines = [names["machine"](number, units, number == 3) for number, units in enumerate(sizes[1:], 1)]
    job = names["autoencoder"](machines).job(batch_size=100, train_steps=1)
    expected = models.autoencoder(sizes)
    kinds = [(layer.type, layer.innerproduct_conf) for layer in net(job)]
    assert kinds == [(layer.type, layer.innerproduct_conf) for layer in net(expected)]
    images = np.zeros((1, 784), np.uint8)
    params, of_models = (dsinga.build_net(each, data=images).params for each in (job, expected))
    assert [param.shape for param in params.values()] == [param.shape for param in of_models.values()]


@pytest.fixture(scope="module")
def mnist(real_data, tmp_path_factory):
    """A folder with 600 training and 200 test images of MNIST."""
    folder, whole = tmp_path_factory.mktemp("mnist"), tmp_path_factory.mktemp("whole")
    import_records("mnist", real_data / "mnist", whole)
    for part, count in {"train": 600, "test": 200}.items():
        store = open_store(whole / f"{part}_data.zarr")
        write_store(folder / f"{part}_data.zarr", [store.read(np.arange(count))])
    return folder


@pytest.mark.data
@pytest.mark.parametrize("name", ["mlp", "convnet", "autoencoder", "own_loop"])
def test_a_script_runs_on_images_of_mnist(name, mnist, monkeypatch, capsys):
    monkeypatch.chdir(mnist)
    monkeypatch.setattr(sys, "argv", [name, "1"])
    monkeypatch.syspath_prepend(FOLDER / "mnist")
    runpy.run_path(str(FOLDER / "mnist" / f"{name}.py"), run_name="__main__")
    assert "loss" in capsys.readouterr().out


@pytest.mark.data
def test_the_convnet_runs_on_images_of_cifar10(real_data, tmp_path, monkeypatch, capsys):
    import_records("cifar10", real_data / "cifar10", tmp_path / "whole")
    for part in ("train", "test"):
        store = open_store(tmp_path / "whole" / f"{part}_data.zarr")
        write_store(tmp_path / f"{part}_data.zarr", [store.read(np.arange(200))])
    mean = open_store(tmp_path / "whole" / "image_mean.zarr")
    write_store(tmp_path / "image_mean.zarr", [mean.read(np.arange(1))])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["convnet", "1"])
    runpy.run_path(str(FOLDER / "cifar10" / "convnet.py"), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out
