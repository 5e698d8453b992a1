"""A small restricted Boltzmann machine as a net, one iteration of kCD on it, and what is exactly true of it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dsinga.job import AlgConf, LayerConf
from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet
from dsinga.training import algorithm
from tests.support.training_cases import NUMPY, build, gradients, layer


def machine(hidden: int, source: str = "data", name: str = "", visible: Any = (), **conf: Any) -> list[LayerConf]:
    """Return both sides of a machine; ``conf`` has settings of the hidden side, ``visible`` of the visible side."""
    vis, hid = f"vis{name}", f"hid{name}"
    bias = [{}] if conf.get("bias_term", True) else []
    visible_conf = {"hdim": hidden, "bias_term": conf.get("bias_term", True), **dict(visible)}
    return [
        layer(vis, "kRBMVis", source, hid, rbm_conf=visible_conf, param=[{"name": f"w{name}"}, *bias]),
        layer(hid, "kRBMHid", vis, rbm_conf={"hdim": hidden, **conf}, param=[{"share_from": f"w{name}"}, *bias]),
    ]


def net_of(units: int, hidden: int, rows: int, visible: Any = (), **conf: Any) -> NeuralNet:
    return build(*machine(hidden, visible=visible, **conf), shape=(units,), rows=rows)


def context(net: NeuralNet, rows: Rows | None = None, step: int = 5) -> Context:
    total = net.layer("data").shape[0]
    return Context(NUMPY, net.phase, rows or Rows(0, total, total), seed=3, step=step)


def values_of(net: NeuralNet, scale: float = 1.0, seed: int = 0) -> dict[str, np.ndarray]:
    """Params in float64; chains begin with zeros."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, scale, param.shape) if param.trainable else np.zeros(param.shape)
        for name, param in net.params.items()
    }


def cd(
    net: NeuralNet, values: Mapping[str, Any], data: Any, ctx: Context, steps: int = 1
) -> tuple[dict[str, np.ndarray], dict]:
    """Run one iteration of kCD on ``data``; return the gradients that it pushed, and the metrics."""
    run = algorithm(AlgConf(alg="kCD", cd_conf={"cd_k": steps}))
    return gradients(net, values, {"data": Records(data, None)}, ctx, run)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def states(units: int) -> np.ndarray:
    """Return all states of ``units`` binary units, (2^units, units) float64."""
    return (np.arange(2**units)[:, None] >> np.arange(units) & 1).astype(np.float64)


class Exact(NamedTuple):
    """A machine of a few binary units, whose distribution is computed exactly by a sum over all states."""

    w: np.ndarray
    a: np.ndarray
    b: np.ndarray

    def visible(self) -> np.ndarray:
        """The probability of each state of the visible units."""
        v, h = states(len(self.a)), states(len(self.b))
        energy = -(v @ self.w.T @ h.T) - (v @ self.a)[:, None] - (h @ self.b)[None]
        p = np.exp(-energy).sum(axis=1)
        return p / p.sum()

    def likelihood_gradient(self, data: np.ndarray) -> list[np.ndarray]:
        """The gradient of -log P(data) for w, a and b."""
        p, v = self.visible(), states(len(self.a))
        return [
            model - data_mean for model, data_mean in zip(self.statistics(v, p), self.statistics(data), strict=True)
        ]

    def statistics(self, v: np.ndarray, p: np.ndarray | None = None) -> list[np.ndarray]:
        """The mean of h v, v and h over rows of the visible units, which have the probabilities ``p``."""
        p = np.full(len(v), 1 / len(v)) if p is None else p
        h = sigmoid(v @ self.w.T + self.b)
        return [(h * p[:, None]).T @ v, p @ v, p @ h]
