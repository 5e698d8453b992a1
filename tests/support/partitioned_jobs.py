"""Jobs over small stores that train the nets of ``partition_nets``, from the same params however they are cut."""

from pathlib import Path

import numpy as np

from dsinga.cutting.strategy import is_inserted_split
from dsinga.data import write_store
from dsinga.job import ClusterConf, DataConf, Job, LayerConf, LayerType, NetConf, StoreConf, loads
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet
from tests.support.partitioned_run import RATE, Values, initial
from tests.support.random_nets import CLASSES

RECORDS = 40
SGD = "updater { type: kSGD learning_rate { type: kFixed base_lr: 1 } }"
STEEP = 1024.0


def job_of(net: NeuralNet, folder: Path, workers: int = 0, steps: int = 10, rate: float = RATE) -> Job:
    """Return the job that trains ``net`` by plain SGD; its stores, and its params to start from, are in ``folder``.

    Without ``workers`` the job has one worker, and its layers have no partition_dim and no location.
    """
    layers = [conf_of(node.layer, folder) for node in net.nodes if not is_inserted_split(node.layer)]
    if not workers:
        layers = [layer.replace(partition_dim=None, location=None) for layer in layers]
    start = folder / "start.npz"
    np.savez(start, allow_pickle=False, **start_of(net))
    job = loads(SGD, "cut.conf").replace(
        name="cut",
        train_steps=steps,
        checkpoint_path=[str(start)],
        neuralnet=NetConf(layer=layers),
        cluster=ClusterConf(nworkers_per_group=workers or 1, nservers_per_group=1 + workers // 3),
    )
    job.updater.learning_rate.base_lr = rate
    return job


def start_of(net: NeuralNet) -> Values:
    """Return the params to start from."""
    return initial(net, np.float32)


def gradients(net: NeuralNet, trained: Values) -> Values:
    """Return the gradients and the new lasting state, computed from the params after one step at the rate STEEP.

    A step at a rate of 1 is the gradient too, but adding it to larger params rounds it; a power of two does not.
    """
    start = start_of(net)
    return {
        name: (start[name] - value) / np.float32(STEEP) if net.params[name].trainable else value
        for name, value in trained.items()
    }


def conf_of(layer: Layer, folder: Path) -> LayerConf:
    """Return the configuration of a layer; an input layer reads a store with records of its shape."""
    if not layer.is_input or layer.conf.type is LayerType.kDummy:
        return layer.conf
    path, rows = str(write_records(folder, layer)), layer.shape[0]
    if layer.conf.type is LayerType.kLMDBData:
        return layer.conf.replace(store_conf=None, lmdbdata_conf=DataConf(path=path, batchsize=rows))
    if layer.conf.type is LayerType.kShardData:
        return layer.conf.replace(store_conf=None, sharddata_conf=DataConf(path=path, batchsize=rows))
    return layer.conf.replace(store_conf=StoreConf(path=path, batchsize=[rows]))


def write_records(folder: Path, layer: Layer) -> Path:
    """Return the path of a store of random records for an input layer; write it if it is missing."""
    shape, codes = layer.shape[1:], getattr(layer, "codes", 0)
    label_shape, label_dtype = layer.label_format.shape, layer.label_format.dtype or np.dtype(np.int64)
    kind = "codes" if codes else "".join(map(str, (*label_shape, label_dtype.name)))
    path = folder / f"{'x'.join(map(str, shape))}{kind}.zarr"
    if not path.exists():
        rng = np.random.default_rng(len(shape))
        data = rng.normal(size=(RECORDS, *shape)).astype(np.float32)
        data = data if shape else abs(data)  # weights
        labels = rng.integers(0, CLASSES, (RECORDS, *label_shape)).astype(label_dtype)
        if codes:
            beyond = np.arange(*shape) >= rng.integers(1, shape[0] + 1, RECORDS)[:, None]
            data = np.where(beyond, -1, rng.integers(0, codes, data.shape)).astype(np.int32)
            labels = np.where(beyond, -1, rng.integers(0, CLASSES, data.shape))
        write_store(path, [(data, labels)])
    return path
