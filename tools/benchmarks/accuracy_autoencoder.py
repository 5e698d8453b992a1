"""Compare the reconstruction error of an auto-encoder on MNIST with that of as many principal components.

``python tools/benchmarks/accuracy_autoencoder.py JOB CHECKPOINT``, with JOB that of an auto-encoder (SINGA's
examples/rbm/autoencoder.conf, datasets/mnist/autoencoder.conf), in the folder from which its stores are found, and
CHECKPOINT its params. The measure is Hinton and Salakhutdinov's (Science 2006): the squared error of an image, summed
over its pixels, which are from 0 to 1, and averaged over all test images. The error before fine-tuning, with the
restricted Boltzmann machines of the job's ``checkpoint_path``, is printed as well.
"""

from __future__ import annotations

import sys

import numpy as np

import dsinga
from dsinga.api import roots
from dsinga.checkpoint import read_params
from dsinga.data import open_store
from dsinga.job import Job, LayerType, Phase, load


def images(job: Job, phase: Phase) -> np.ndarray:
    """Return all records that the job reads in a phase, as its net reads them, in float64."""
    (conf,) = [
        layer.store_conf for layer in job.net.layer if layer.type is LayerType.kRecordInput and layer.in_phase(phase)
    ]
    store = open_store(conf.path, backend=conf.backend, roots=roots(job, None))
    return store.read(np.arange(len(store)))[0].reshape(len(store), -1) / conf.std_value


def squared_error(rebuilt: np.ndarray, original: np.ndarray) -> float:
    """Return the mean over rows of the squared distance."""
    return float(((rebuilt - original) ** 2).sum(axis=1).mean())


def principal_components(train: np.ndarray, test: np.ndarray, count: int) -> float:
    """Return the error of ``test`` after projection on the first components of ``train``."""
    mean = train.mean(axis=0)
    _, directions = np.linalg.eigh((train - mean).T @ (train - mean))
    basis = directions[:, -count:]
    return squared_error((test - mean) @ basis @ basis.T + mean, test)


def code_length(job: Job) -> int:
    """Return the length of the code, which is the smallest number of outputs of a layer."""
    return min(layer.innerproduct_conf.num_output for layer in job.net.layer if layer.innerproduct_conf)


def main(path: str, checkpoint: str) -> None:
    """Print the table."""
    job = load(path)
    train, test = (images(job, phase) for phase in (Phase.kTrain, Phase.kTest))
    count = code_length(job)
    pretrained: dict[str, np.ndarray] = {}
    for path_ in job.checkpoint_path:
        pretrained |= read_params(path_, roots(job, None))
    print(f"| the mean image | {squared_error(train.mean(axis=0), test):.2f} |")
    print(f"| principal components, {count} | {principal_components(train, test, count):.2f} |")
    print(f"| machines, unfolded | {dsinga.evaluate(job, pretrained)['loss']:.2f} |")
    print(f"| auto-encoder, code of {count} | {dsinga.evaluate(job, checkpoint)['loss']:.2f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
