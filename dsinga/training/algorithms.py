"""The TrainOneBatch algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import dsinga.training.bp  # noqa: F401  registers kBP
from dsinga.job import AlgConf
from dsinga.layers.base import Array, Context, Records
from dsinga.net import NeuralNet
from dsinga.training.bp import Metrics, Push
from dsinga.training.chosen import chosen

Algorithm = Callable[[NeuralNet, Mapping[str, Array], Mapping[str, Records], Context, Push], Metrics]


def algorithm(conf: AlgConf) -> Algorithm:
    """Return the algorithm that the job asks for.

    A user's own is registered as ``@register("algorithm", "name")``: a function like :func:`dsinga.training.bp`, or a
    class that is made from the AlgConf and called like it. Raises JobError for one that is not registered.
    """
    entry = chosen("algorithm", conf, "alg", "user_alg")
    return entry(conf) if isinstance(entry, type) else entry
