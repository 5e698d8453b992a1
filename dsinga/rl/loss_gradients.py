"""Gradients of the losses of a net by the features that they take, for features that were computed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.job import Phase
from dsinga.layers import Context, Rows
from dsinga.layers.connect.connection import Split
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet
from dsinga.ops import get_ops
from dsinga.training import Metrics
from dsinga.training.metrics import read_metrics, report_metrics


def loss_gradients(
    net: NeuralNet,
    features: Mapping[str, np.ndarray],
    records: Mapping[str, np.ndarray],
    *,
    seed: int = 0,
    step: int = 0,
) -> tuple[dict[str, np.ndarray], Metrics]:
    """Return the gradients of the sum of a net's losses by the features of some layers, and the metrics of the losses.

    Args:
        net: the net; its loss layers have no params, and no label source.
        features: the features (R, ...) of the layers below the losses, by name.
        records: records (R, ...) of input layers, which get no gradient.
        seed: determines random numbers.
        step: determines them, too.

    Raises UserError for a loss whose source is neither among the features nor the records.
    """
    ops = get_ops().for_worker()
    ops.enter()
    rows = len(next(iter(features.values())))
    ctx = Context(ops, Phase.kTrain, Rows(0, rows, rows), seed, step)
    gradients: dict[str, Any] = {}
    metrics = []
    for node in net.nodes:
        if not node.layer.is_loss:
            continue
        names = [_before_splits(net, position) for position in node.sources]
        sources = [ops.asarray(_source(node.layer, name, features, records)) for name in names]
        output = node.layer.compute_feature([], sources, ctx)
        metrics.append((node.layer.name, output.metrics))
        needs = [name in features for name in names]
        computed, _ = node.layer.compute_gradient([], sources, output, None, needs, ctx)
        for name, gradient in zip(names, computed, strict=True):
            if name in features and gradient is not None:
                gradients[name] = ops.add(gradients[name], gradient) if name in gradients else gradient
    host = {name: np.asarray(ops.to_numpy(gradient)) for name, gradient in gradients.items()}
    return host, report_metrics(net, read_metrics(metrics, ops))


def _before_splits(net: NeuralNet, position: int) -> str:
    """Return the name of the layer whose feature a split at ``position`` copies; of another layer its own name."""
    node = net.nodes[position]
    return _before_splits(net, node.sources[0]) if isinstance(node.layer, Split) else node.layer.name


def _source(
    loss: Layer, name: str, features: Mapping[str, np.ndarray], records: Mapping[str, np.ndarray]
) -> np.ndarray:
    array = features[name] if name in features else records.get(name)
    if array is None or loss.params or loss.labels.source is not None:
        raise UserError(
            f"the loss {loss.name!r} of a net with hidden states takes heads of the model and records without labels, "
            f"and has no params; {name!r} is none of these"
        )
    return array
