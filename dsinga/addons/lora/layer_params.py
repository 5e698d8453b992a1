"""Changes the configurations of params of a job's layers, for layers as they are in a built net."""

from __future__ import annotations

from collections.abc import Callable

from dsinga.job import LayerConf, ParamConf
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet


def layers_by_name(net: NeuralNet) -> dict[str, Layer]:
    """Return the layers of a net by their names in the job; of the copies of a layer the last."""
    return {node.layer.name.rpartition("#")[2]: node.layer for node in net.nodes}


def with_params(layer: LayerConf, built: Layer, change: Callable[[str, ParamConf], ParamConf]) -> LayerConf:
    """Return a layer of a job with changed configurations of its trained params, which ``change`` makes of their names.

    Params that it shares with other layers stay as they are.
    """
    specs = [spec for spec in built.params if not spec.by_rows]
    given = [*layer.param, *(ParamConf() for _ in specs[len(layer.param) :])]
    changed = [
        change(conf.name or f"{layer.name}_{spec.role}", conf) if spec.trainable and not conf.share_from else conf
        for conf, spec in zip(given, specs, strict=False)
    ]
    while len(changed) > len(layer.param) and changed[-1] == ParamConf():
        changed.pop()
    return layer.replace(param=changed)
