"""Small nets for tests of training, and functions that run one iteration."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import Context, Layer, Output, ParamSpec, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import get_ops
from dsinga.training import Algorithm, bp

NUMPY = get_ops("numpy")


@register("layer", "Exact")
class Exact(Layer):
    """Passes on the records unchanged, also in float64, so that numerical gradients are not rounded."""

    is_input = True

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = (info.batchsize, *info.shape)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0].data, labels=sources[0].labels)


@register("layer", "LastingMean")
class LastingMean(Layer):
    """Keeps the mean of its source's columns as lasting state, unless it is named "still"; scales its source."""

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("scale", (1,)), ParamSpec("mean", self.shape[1:], trainable=False))

    def compute_feature(self, params, sources, ctx):
        state = {} if self.conf.name == "still" else {"mean": sources[0].mean(axis=0)}
        return Output(sources[0] * params[0], state=state)

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return (grad * params[0] if needs[0] else None,), ((grad * sources[0]).sum(keepdims=True)[0], None)


def layer(name: str, kind: str, *srclayers: str, **more: Any) -> LayerConf:
    user_type = {} if kind.startswith("k") else {"type": "kUserLayer", "user_type": kind}
    return LayerConf(**{"name": name, "type": kind, "srclayers": list(srclayers), **user_type, **more})


def dense(name: str, source: str, outputs: int = 3, *param: dict, **conf: Any) -> LayerConf:
    return layer(name, "kInnerProduct", source, innerproduct_conf={"num_output": outputs, **conf}, param=list(param))


def conv(name: str, source: str, filters: int) -> LayerConf:
    return layer(name, "kConvolution", source, convolution_conf={"num_filters": filters, "kernel": 3, "pad": 1})


def build(*layers: LayerConf, shape: tuple[int, ...] = (5,), rows: int = 4, phase: Phase = Phase.kTrain) -> NeuralNet:
    data = layer("data", "Exact")
    return create_net(NetConf(layer=[data, *layers]), phase, {"data": RecordInfo(shape, rows)})


def values_of(net: NeuralNet, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.uniform(-0.5, 0.5, param.shape) for name, param in net.params.items()}


def records_of(net: NeuralNet, seed: int = 0, classes: int = 3) -> dict[str, Records]:
    """Return float64 records and labels for the layer "data"."""
    rng = np.random.default_rng(seed)
    shape = net.layer("data").shape
    return {"data": Records(rng.normal(size=shape), rng.integers(0, classes, shape[0]))}


def context(net: NeuralNet, rows: Rows | None = None, ops: Any = NUMPY) -> Context:
    total = net.layer("data").shape[0]
    return Context(ops, net.phase, rows or Rows(0, total, total), seed=3, step=5)


def gradients(
    net: NeuralNet,
    values: Mapping[str, Any],
    records: Mapping[str, Records],
    ctx: Context | None = None,
    algorithm: Algorithm = bp,
) -> tuple[dict[str, np.ndarray], dict]:
    """Run one iteration of ``algorithm``; return the gradients that it pushed, in order, and the metrics."""
    pushed: dict[str, np.ndarray] = {}

    def push(name: str, gradient: np.ndarray) -> None:
        assert name not in pushed, f"{name} is pushed twice"
        pushed[name] = gradient

    metrics = algorithm(net, values, records, ctx or context(net), push)
    return pushed, metrics
