"""The layer kWave, and the message ``wave`` of a layer."""

from typing import Any

import numpy as np

import dsinga
from dsinga.job import Settings, setting
from dsinga.job.limits import Positive
from dsinga.layers import Connection, Cut, Layer, Output


@dsinga.register("message", "LayerConf.wave")
class Begin(Settings):
    """Where the wave of a kWave begins."""

    phase: float = setting(0.0, "what is added to the angle")


@dsinga.register("layer", "kWave")
class Wave(Layer):
    """The sine of its source."""

    class Conf(Settings):
        """How fast the sine moves."""

        frequency: Positive = setting(1.0, "the factor of the source")

    cut = Cut(Connection.kOneToOne)

    def __init__(self, conf: Any, source_shapes: Any, info: Any = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def _angle(self, source: Any) -> Any:
        return self.settings.frequency * source + (0 if self.conf.wave is None else self.conf.wave.phase)

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
        return Output(np.sin(self._angle(sources[0]), dtype=np.float32))

    def compute_gradient(self, params: Any, sources: Any, output: Any, grad: Any, needs: Any, ctx: Any) -> Any:
        slope = self.settings.frequency * np.cos(self._angle(sources[0]))
        return ((slope * grad).astype(np.float32) if needs[0] else None,), ()
