"""A cache of the nets that a model has built for ``predict`` and ``evaluate``."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from dsinga.base.registry import version
from dsinga.engine.local_net import LocalNet
from dsinga.net.layer_classes import layer_class
from dsinga.passes.processors import read_device

KEPT = 8  # the most nets: one for each shape of records and labels, and each thread


class KeptNets:
    """A cache of the nets built since the last change of the model; not pickled or copied."""

    def __init__(self) -> None:
        self._kept: tuple[list[Any], dict[Hashable, Any]] = [], {}

    def __reduce__(self) -> tuple[type[KeptNets], tuple[()]]:
        return KeptNets, ()

    def get(self, model: Any, kind: Hashable, make: Callable[[], Any], *arrays: Mapping[str, Any]) -> Any:
        """Return the cached net for arrays of these shapes, or ``make`` it; nets with user code are not cached."""
        parts = [*model.parts_of_nets(), *(model._params or {}).values()]
        before, nets = self._kept
        if len(parts) != len(before) or not all(map(operator.is_, parts, before)):
            self._kept = parts, (nets := {})
        forms = (tuple((name, np.shape(x)[1:], np.asarray(x).dtype) for name, x in each.items()) for each in arrays)
        shapes = *model.record_shapes.items(), *model.label_shapes.items()
        kind = kind, read_device(), version(), threading.get_ident(), shapes, *forms
        if (net := nets.get(kind)) is None:
            net = make()
            layers = net.job.neuralnet.layer if isinstance(net, LocalNet) else ()
            if not any(layer_class(layer).runs_user_code for layer in layers):  # user code may keep state
                nets[kind] = net
            if len(nets) > KEPT:
                nets.pop([*nets][0], None)
        return net
