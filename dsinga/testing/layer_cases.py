"""Cases for the tests of layers: a layer to build, with random params and sources, and the backends to use."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job import LayerConf, LayerType
from dsinga.layers import Layer, ParamSpec, RecordInfo, Records
from dsinga.layers.interface.contract import make_layer
from dsinga.layers.interface.layer import Shape
from dsinga.ops import BACKENDS, Ops
from dsinga.ops.layout import LAST, to_image, to_rows


@dataclass(frozen=True)
class LayerCase:
    """A layer to test: its type, the shapes of its sources, its configuration, and the sources that it accepts.

    - ``kind``: the layer's registered name: a type such as "kReLU", or the ``user_type`` of a user's layer.
    - ``shapes``: the shape of each source, batch first, of at least 2 rows; 5 suffice.
    - ``conf``: fields of the layer's configuration, such as ``{"dropout_conf": {"unit": "kRow"}}`` or
      ``{"extensions": {"mine": {...}}}``. An input layer also requires the ``info`` of its store.
    - ``variant``: distinguishes cases in pytest's output.
    - ``phases_differ``: whether training gives another feature than validation and test, as with dropout.
    - ``joins_rows``: whether the feature separates the rows of a part of the batch, as with kConcate on axis 0.
    - ``feature_dtype``: int64 for layers that return labels or codes.

    Sources are random float numbers around 0, except:

    - The source at ``labels.source`` has integer labels below ``classes``, (batch,), or (batch, ``steps``) for
      sequences of different lengths. Without ``classes`` it has float32 labels of the given shape.
    - If ``codes`` is not 0, the first source has integers below ``codes``, and -1 in its last row.
    - The source at index ``probabilities`` has numbers between 0 and 1.

    For other sources or params, override :meth:`source` or :meth:`param` in a subclass.
    """

    kind: str
    shapes: Sequence[Shape] = ()
    conf: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    info: RecordInfo | None = None
    classes: int = 0
    probabilities: int | None = None
    steps: int = 0
    codes: int = 0
    phases_differ: bool = False
    joins_rows: bool = False
    feature_dtype: type = np.float32

    def __str__(self) -> str:
        return f"{self.kind}-{self.variant}" if self.variant else self.kind

    def layer(self) -> Layer:
        """Build the layer as a net does; raise UserError if it refuses its configuration or sources."""
        cls = lookup("layer", self.kind)
        shapes = [self.labels_shape(shape) if k == cls.labels.source else shape for k, shape in enumerate(self.shapes)]
        return make_layer(cls, self._layer_conf, shapes, self.info)

    @cached_property
    def _layer_conf(self) -> LayerConf:
        names = [f"source{index}" for index in range(len(self.shapes))]
        type_ = {"type": self.kind} if self.kind in LayerType.__members__ else {"user_type": self.kind}
        return LayerConf(name="layer", srclayers=names, **{**type_, **self.conf})

    @cached_property
    def _example(self) -> Layer:
        """A layer for questions that all layers of the case answer alike."""
        return self.layer()

    def labels_shape(self, shape: Shape) -> Shape:
        """Return the shape of labels at ``labels.source``, given the case's ``shape`` for it."""
        if self.steps:
            return (shape[0], self.steps)
        return shape[:1] if self.classes else tuple(shape)

    @property
    def batch(self) -> int:
        """The number of rows of the batch."""
        return self.shapes[0][0] if self.shapes else self._example.shape[0]

    @property
    def has_gradient(self) -> bool:
        """Whether the layer defines ``compute_gradient`` and back-propagation calls it."""
        layer = self._example
        return type(layer).compute_gradient is not Layer.compute_gradient and not layer.is_output

    def needs(self) -> list[bool]:
        """Return for each source whether it gets a gradient, unlike labels and codes."""
        label_source = self._example.labels.source
        return [index != label_source and not (index == 0 and self.codes) for index in range(len(self.shapes))]

    def inputs(self, ops: Ops, dtype: type) -> tuple[list[Any], list[Any]]:
        """Return (params, sources) as read-only ``ops`` arrays in ``dtype``, with equal numbers for all backends."""
        layer, rng = self._example, np.random.default_rng(zlib.crc32(str(self).encode()))
        if layer.is_input:
            return [], [self.records(rng)]
        sources = [self.source(layer, index, rng) for index in range(len(self.shapes))]
        params = [self.param(spec, rng) for spec in layer.params]

        def place(array: np.ndarray) -> Any:
            return ops.asarray(read_only(array.astype(dtype))) if array.dtype.kind == "f" else read_only(array)

        placed = [read_only(s) if k == layer.labels.source else place(s) for k, s in enumerate(sources)]
        return [place(param) for param in params], placed

    def records(self, rng: np.random.Generator) -> Records:
        """Return a random batch of the store described by ``info``: bytes, and labels below 10 if it has labels."""
        assert self.info is not None, "a case of an input layer needs info=RecordInfo(...)"
        data = rng.integers(0, 256, (self.info.batchsize, *self.info.shape)).astype(np.uint8)
        labels = rng.integers(0, 10, self.info.batchsize) if self.info.has_labels else None
        return Records(read_only(data), labels)

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        """Return a random source: float64, or integers for labels and codes."""
        shape = tuple(self.shapes[index])
        if index == layer.labels.source:
            return self._labels(shape, rng)
        if index == 0 and self.codes:
            codes = rng.integers(0, self.codes, shape)
            codes[-1] = -1
            return codes
        numbers = distinct_numbers(shape, rng)
        return (numbers + 2) / 5 if index == self.probabilities else numbers

    def param(self, spec: ParamSpec, rng: np.random.Generator) -> np.ndarray:
        """Return a random float64 param: numbers from 0.3 to 1, all of one sign, or positive for variances."""
        numbers = rng.uniform(0.3, 1.0, spec.shape)
        return numbers * (1 if "vari" in spec.role else rng.choice([-1, 1]))

    def _labels(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        if not self.classes:
            return rng.standard_normal(shape).astype(np.float32)
        if not self.steps:
            return rng.integers(0, self.classes, shape[0])
        lengths = rng.integers(1, self.steps + 1, shape[0])
        lengths[1] = self.steps
        labels = rng.integers(0, self.classes, (shape[0], self.steps))
        return np.where(np.arange(self.steps) < lengths[:, None], labels, -1)


def distinct_numbers(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return float64 numbers far from each other and from 0, so that small steps cross no kink.

    Images (4 axes) are channels-last in memory.
    """
    numbers = rng.permutation(np.linspace(-1.93, 2.011, math.prod(shape))).reshape(shape)
    if np.abs(numbers).min(initial=1.0) < 1e-4:
        numbers += 2e-4
    return to_image(to_rows(numbers)) if len(shape) in LAST else numbers


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view of ``array``."""
    view = array.view()
    view.flags.writeable = False
    return view


def why_missing(backend: str) -> str:
    """Return why a backend does not load on this machine, "" if it does."""
    if backend not in BACKENDS:
        return f"there is no backend {backend}"
    try:
        BACKENDS[backend]()
    except UserError as error:
        return str(error)
    return ""


def available_backends() -> list[str]:
    """Return the names of the backends that load on this machine; "numpy" always does."""
    return [backend for backend in BACKENDS if not why_missing(backend)]
