"""Trains a net in float64, otherwise as its job says: beside its losses one sees what float32 rounds."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from dsinga import nn
from dsinga.job import Job
from dsinga.layers import Context, Records, Rows
from dsinga.training import bp, create_updater, name_metrics
from tests.support.partitioned_run import DoubleOps, Values


def train_in_float64(
    job: Job, values: Mapping[str, np.ndarray], batches: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[tuple[float, Values]]:
    """Yield the loss of each batch (x, y) of the one input layer, and the params after its update, in float64.

    Training begins with ``values``, whole, by the whole net. The caller may change the params that it gets.
    """
    net, updater = nn.LocalNet(job).net, create_updater(job.updater)
    (name_of_input,) = [node.layer.name for node in net.nodes if node.layer.is_input]
    params = {name: np.array(value, np.float64) for name, value in values.items()}
    updaters = {name: updater.of(name, param.shape) for name, param in net.params.items()}
    state = {
        name: {slot: array.astype(np.float64) for slot, array in each.initial_state(params[name].reshape(-1)).items()}
        for name, each in updaters.items()
    }
    for step, (x, y) in enumerate(batches):
        records = Records(x if x.dtype.kind in "iu" else x.astype(np.float64), y)
        ctx, gradients = Context(DoubleOps(), net.phase, Rows(0, len(x), len(x)), job.seed, step), Values()
        metrics = name_metrics(net, bp(net, params, {name_of_input: records}, ctx, gradients.__setitem__))
        for name, gradient in gradients.items():
            param, flat = net.params[name], params[name].reshape(-1)
            scales = param.lr_scale, param.wd_scale, param.shape
            updaters[name].update(step, flat, gradient.reshape(-1), state[name], *scales)
        loss, rows = metrics["loss"]
        yield loss / rows, params


def round_to_float32(params: Values) -> None:
    """Round params to float32, in place."""
    for value in params.values():
        value[...] = value.astype(np.float32)


def largest_difference(losses: Iterable[float], others: Iterable[float]) -> float:
    """Return the largest relative difference of two curves."""
    return max(abs(loss - other) / other for loss, other in zip(losses, others, strict=True))
