"""Finds a job's layers by patterns of names, and changes the settings of their params."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.job import Job, LayerConf, ParamConf
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet


def fitting(pattern: str, names: Collection[str], fail: Callable[[str], UserError]) -> list[str]:
    """Return the names that match a pattern; raise ``fail(sentence)`` if none does."""
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise fail(f"no layer is called {pattern!r}{nearest_or_listed(pattern.strip('*'), names, 'there are')}")
    return found


def layers_by_name(net: NeuralNet) -> dict[str, Layer]:
    """Return a net's layers by their names in the job; if a layer has copies, the last one."""
    return {node.layer.name.rpartition("#")[2]: node.layer for node in net.nodes}


def with_layers(job: Job, layers: Sequence[LayerConf]) -> Job:
    """Return a job with other layers, for example with LoRA."""
    return job.replace(neuralnet=job.neuralnet.replace(layer=list(layers)))


def with_params(layer: LayerConf, built: Layer, change: Callable[[str, ParamConf], ParamConf]) -> LayerConf:
    """Change the settings of a layer's trained params with ``change(name, conf)``.

    Params shared with other layers are unchanged.
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
