"""Writes a model's layers into a job, call by call: their names, sources, params and shapes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job import LayerConf, LayerType, ParamConf
from dsinga.job.message import field_names, set_fields
from dsinga.layers.interface.contract import MustUnroll
from dsinga.layers.interface.declarations import ParamSpec, SourceKind
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.net.layer_classes import layer_class
from dsinga.net.unroll import make_sequence_layer
from dsinga.nn.words.derived import settings_field
from dsinga.nn.words.initialisers import init_conf
from dsinga.nn.words.regularisers import Penalty
from dsinga.nn.writing.feature import Feature, Writable, row_shape


class NetWriter:
    """Collects the job layers of a model while it is converted.

    ``owners`` are the param names of each written layer, by the id of its builder, for further calls to share.
    ``record_shapes`` are record shapes by input layer, for inputs without a shape.
    """

    def __init__(self, record_shapes: Mapping[str, Shape] | None = None) -> None:
        self.record_shapes = dict(record_shapes or {})
        self.layers: list[LayerConf] = []
        self.inputs: dict[str, LayerConf] = {}
        self.owners: dict[int, list[str]] = {}
        self.builders: dict[int, Any] = {}
        self.trained: set[str] = set()  # the layers with trained params
        self.penalties: dict[str, Penalty] = {}
        self.named: dict[str, Writable] = {}
        self._taken, self._seen = set[str](), 0

    def write(self, builder: Writable, sources: Sequence[Feature]) -> Feature:
        """Write the layers of one call of ``builder`` into the job, and return its output."""
        name = self.unused_name(builder)
        feature = builder.write(LayerWriter(self, builder, name, with_lengths(builder.kind, sources)))
        feature = keep_lengths(builder.kind, name, feature, sources)
        if not any(source.channels_last for source in sources):
            return feature
        parts = tuple(part._replace(channels_last=True) for part in feature.parts)
        return feature._replace(channels_last=True, parts=parts)

    def reshaped(self, source: Feature) -> Feature:
        """Flatten a source by a kReshape layer, written once for each source."""
        name = f"{source.layer}_flat"
        if name not in self.taken_names():
            self.layers.append(make_conf(name, "kReshape", [source.layer]))
        return Feature(name, row_shape(source), before=source.before)

    def trained_below(self, conf: LayerConf) -> str:
        """Return the name of a trained layer that this layer depends on, or ""."""
        below = {*conf.srclayers}
        for written in reversed(self.layers):  # sources are written before
            if written.name in below & self.trained:
                return written.name
            if written.name in below:
                below |= {*written.srclayers}
        return ""

    def unused_name(self, builder: Writable) -> str:
        """Return a name for a layer's next call."""
        base = builder.name or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", builder.kind).lower()
        if builder.name and self.named.setdefault(base, builder) is not builder:
            raise UserError(f"two layers are called {base!r}; give one of them another name")
        taken = self.taken_names()
        names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(1)))
        return next(name for name in names if name not in taken)

    def taken_names(self) -> set[str]:
        """Return the names that layers have already, so that a new layer gets another one."""
        self._taken.update(conf.name for conf in self.layers[self._seen :])
        self._seen = len(self.layers)
        return self._taken


class LayerWriter:
    """Writes the job layers for one call of a model's layer.

    Attributes:
        name: name of the call, for the layer with the params.
        sources: outputs that the layer reads.
    """

    def __init__(self, net: NetWriter, builder: Writable, name: str, sources: Sequence[Feature]):
        self.net, self.builder, self.name, self.sources = net, builder, name, tuple(sources)
        self.settings: Mapping[str, Any] = {**builder.settings, "trainable": builder.trainable}

    @property
    def source(self) -> Feature:
        """The layer's only source, for layers that must not have several."""
        if len(self.sources) != 1:
            raise self.fail(f"takes one source, not {len(self.sources)}")
        return self.sources[0]

    def rows(self, source: Feature) -> Shape:
        """Return the shape of a row of a source, which the layer must know."""
        shape = row_shape(source)
        if shape is None:
            raise self.fail(
                f"needs to know the shape that {source.layer!r} gives; begin with nn.Input(shape=...), or call fit, "
                "which takes it from the data"
            )
        return shape

    def fail(self, message: str) -> UserError:
        """Return a UserError about this layer, for the caller to raise."""
        return UserError(f"layer {self.name!r}: {message}")

    def add(
        self,
        type: str,
        *,
        sources: Sequence[Feature] | None = None,
        further: Sequence[str] = (),
        name: str | None = None,
        inits: Mapping[str, Any] | None = None,
        fans: Mapping[str, tuple[int, int]] | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        param: Sequence[Any] | None = None,
        **fields: Any,
    ) -> Feature:
        """Write the layer with the params of the call, and return its output.

        ``inits``, ``fans`` (inputs and outputs of a unit) and ``penalties`` are by param role, or its last part.
        ``further`` are names of source layers without a shape. ``sources``, ``name`` and ``param`` (ParamConfs) default
        to the call's.
        """
        features = self._flattened(type, self.sources if sources is None else sources)
        settings = self.settings
        shared = ("partition_dim", "location", "include", "exclude", "recompute")
        srclayers = [*(feature.layer for feature in features), *further]
        conf = make_conf(name or self.name, type, srclayers, **{key: settings.get(key) for key in shared} | fields)
        if not settings.get("trainable", True):
            conf = with_kept_statistics(conf)
        layer = self._make(conf, features)
        if layer is not None:
            given = param if param is not None else settings.get("param") or ()
            conf.param = self._params(conf.name, layer, given, inits or {}, fans or {})
            for spec, name in zip(layer.params, self.net.owners[id(self.builder)], strict=False):
                factors = by_role(penalties or {}, spec)
                if isinstance(factors, Penalty):
                    self.net.penalties[name] = factors
        return self._written(conf, layer, features)

    def extra(self, suffix: str, type: str, *sources: Feature, **fields: Any) -> Feature:
        """Write a further layer without params, such as an activation, and return its output."""
        sources = self._flattened(type, sources)
        fields = {"recompute": self.settings.get("recompute")} | fields
        conf = make_conf(f"{self.name}_{suffix}", type, [source.layer for source in sources], **fields)
        return self._written(conf, self._make(conf, sources), sources)

    def _flattened(self, type: str, sources: Sequence[Feature]) -> tuple[Feature, ...]:
        """Reshape flat sources to vectors, unless a layer of ``type`` accepts them."""
        cls = layer_class(make_conf("", type, []))
        is_like_sources = cls.source_kind is SourceKind.kAnyShape and not cls.labels.source
        is_alike = not is_like_sources or len({source.shape for source in sources}) == 1
        if (cls.source_kind.takes_vectors and is_alike) or not any(source.flat for source in sources):
            return tuple(sources)
        return tuple(self.net.reshaped(source) if source.flat else source for source in sources)

    def _make(self, conf: LayerConf, sources: Sequence[Feature]) -> Layer | None:
        """Make the net's layer to know its output shape; None if a source's shape is unknown."""
        cls = layer_class(conf)
        labels = cls.labels.source
        if labels is not None and labels > 0 and len(sources) > labels:  # one label per row, or per step
            shape = row_shape(sources[0])
            checked_later = cls.labels.floats and cls.labels.per is None  # when the labels are known
            of_row = None if shape is None else () if checked_later else shape[:-1]
            if cls.labels.any_shape:
                of_row = sources[labels].label_shape
            sources = [*sources]
            sources[labels] = sources[labels]._replace(shape=of_row, flat=False)
        elif labels == 0:
            return None
        if cls.is_input or conf.unroll_len is not None or any(source.shape is None for source in sources):
            return None
        if conf.slice_conf is not None and conf.slice_conf.slice_dim == 0:
            return None  # the number of rows in a batch is unknown here
        shapes = [(1, *(source.shape or ())) for source in sources]
        try:
            return make_sequence_layer(cls, conf, shapes, None, {})
        except MustUnroll:
            return None

    def _written(self, conf: LayerConf, layer: Layer | None, sources: Sequence[Feature]) -> Feature:
        """Add a layer to the job and return its output, if params below get a gradient."""
        self.net.layers.append(conf)
        fault = "" if layer is None else layer.no_gradient_because
        if fault and (below := self.net.trained_below(conf)):
            raise self.fail(f"{fault}; the params of {below!r} below need it")
        flat = layer_class(conf).source_kind is SourceKind.kAnyShape and any(source.flat for source in sources)
        parts = tuple(Feature(conf.name, shape[1:]) for shape in layer.part_shapes) if layer is not None else ()
        return Feature(conf.name, None if layer is None else layer.shape[1:], flat, parts=parts)

    def _params(
        self,
        name: str,
        layer: Layer,
        given: Sequence[Any],
        inits: Mapping[str, Any],
        fans: Mapping[str, tuple[int, int]],
    ) -> list[ParamConf]:
        """Return the job's configurations of a layer's params, without empty ones at the end."""
        specs = [spec for spec in layer.params if not spec.by_rows]
        if len(given) > len(specs):
            roles = ", ".join(spec.role for spec in specs) or "none"
            raise self.fail(f"has the params {roles}, but {len(given)} are given")
        if self.settings["trainable"] and any(spec.trainable and not spec.static for spec in specs):
            self.net.trained.add(name)
        owners = self.net.owners.get(id(self.builder))
        if owners is not None:  # a further call shares the params of the first
            pairs = zip(specs, owners, strict=True)
            return [ParamConf(name=f"{name}_{spec.role}", share_from=owner) for spec, owner in pairs]
        confs = []
        for number, spec in enumerate(specs):
            conf = given[number] if number < len(given) else None
            fields = dict(conf) if isinstance(conf, Mapping) else {} if conf is None else set_fields(conf)
            if "share_from" not in fields and "init" not in fields:
                init = init_conf(by_role(inits, spec), spec, by_role(fans, spec), self.name)
                fields |= {} if init is None else {"init": init}
            for scale in ("lr_scale", "wd_scale"):
                number_given = self._scale(scale, number, len(specs))
                fields |= {} if number_given is None else {scale: number_given}
            if not self.settings["trainable"] and spec.trainable:
                fields["static"] = True
            confs.append(ParamConf(**fields))
        self.net.builders[id(self.builder)] = self.builder
        self.net.owners[id(self.builder)] = [
            conf.share_from or conf.name or f"{name}_{spec.role}" for conf, spec in zip(confs, specs, strict=True)
        ]
        while len(confs) > len(given) and not set_fields(confs[-1]):
            confs.pop()
        return confs

    def _scale(self, scale: str, number: int, count: int) -> float | None:
        value = self.settings.get(scale)
        if not isinstance(value, (list, tuple)):
            return value
        if len(value) > count:
            raise self.fail(f"{scale} has {len(value)} numbers, but the layer has {count} params")
        return value[number] if number < len(value) else None


class PartWriter(LayerWriter):
    """Writes a layer inside another one, such as a projection, with the other's common arguments."""

    SHARED = ("lr_scale", "wd_scale", "trainable", "partition_dim", "location", "recompute", "include", "exclude")

    def __init__(self, whole: LayerWriter, builder: Writable, name: str, source: Feature):
        super().__init__(whole.net, builder, name, [source])
        self.settings = {**self.settings, **{name: whole.settings.get(name) for name in self.SHARED}}


Write = Callable[[LayerWriter], Feature]  # writes the layers of a call and returns its feature


# Arguments of functions by setting, if their names differ.
ARGUMENTS = {
    **{"num_output": "units", "dim_hidden": "units", "bias_term": "use_bias", "num_filters": "filters"},
    **{"group": "groups", "dilation": "dilation_rate", "kernel": "kernel_size", "stride": "strides"},
    **{"vocab_size": "input_dim", "feature_dim": "output_dim", "dropout_ratio": "rate", "shape": "target_shape"},
    **{"times": "n", "local_size": "size", "knorm": "k", "causal": "use_causal_mask", "score": "score_mode"},
    **{"candidate_activation": "activation", "gate_activation": "recurrent_activation"},
}


def layer_settings(function: str, type: str, given: Mapping[str, Any], names: Mapping[str, str] = {}) -> dict[str, Any]:
    """Convert a layer's arguments to the job field that holds its settings."""
    return settings_field(function, getattr(lookup("layer", type), "Conf", None), given, ARGUMENTS | {**names})


def simple(function: str, type: str, /, **given: Any) -> Write:
    """Return a function that writes a layer from its settings alone."""
    fields = layer_settings(function, type, given)
    return lambda writer: writer.add(type, **fields)


def make_conf(name: str, type: str, srclayers: Sequence[str], **fields: Any) -> LayerConf:
    """Return a LayerConf; ``type`` is a layer type or the registered name of a user's layer."""
    user = isinstance(type, str) and type not in LayerType.__members__
    kind = {"type": "kUserLayer", "user_type": type} if user and "user_type" not in fields else {"type": type}
    set_values = {key: value for key, value in fields.items() if value is not None}
    return LayerConf(name=name, **kind, srclayers=list(srclayers), **set_values)


def by_role(values: Mapping[str, Any], spec: ParamSpec) -> Any:
    """Look up a param's value by its role, or the last part of the role: "hx" of "back_z_hx"."""
    return values.get(spec.role, values.get(spec.role.rpartition("_")[2]))


# Where sequences end: an embedding of codes passes this to the layers above, as masks in Keras.
WINDOWS = set("Conv1D MaxPooling1D AveragePooling1D".split())  # they change the steps, and report the new lengths
ONE_SOURCE = WINDOWS | set("GRU LSTM SimpleRNN GlobalMaxPooling1D GlobalAveragePooling1D".split())
ATTENTION = ("Attention", "MultiHeadAttention")
OTHER_ORDER = set("Permute Reshape RepeatVector index matmul".split())  # their axis 1 need not be the source's


def with_lengths(kind: str, sources: Sequence[Feature]) -> Sequence[Feature]:
    """Add the sequence lengths to a layer's sources, if it accepts lengths and has none."""
    if not sources or any(len(row_shape(source) or ()) != 2 for source in sources):
        return sources
    source = sources[0] if kind in ONE_SOURCE and len(sources) == 1 else None
    source = sources[min(1, len(sources) - 1)] if kind in ATTENTION else source
    return sources if source is None or source.lengths is None else [*sources, source.lengths]


def keep_lengths(kind: str, name: str, feature: Feature, sources: Sequence[Feature]) -> Feature:
    """Pass the sequence lengths of the first source on, if a layer's output has the same steps."""
    rows, lengths = row_shape(feature), sources[0].lengths if sources else None
    if lengths is None or feature.lengths is not None or rows is None or len(rows) != 2 or kind in OTHER_ORDER:
        return feature
    if kind in WINDOWS:
        return feature._replace(lengths=Feature(name, rows[:1]))
    return feature._replace(lengths=lengths if rows[:1] == lengths.shape else None)


def with_kept_statistics(conf: LayerConf) -> LayerConf:
    """Return the layer with running statistics, if it has any, that training does not change."""
    own: Any = getattr(layer_class(conf), "Conf", None)
    if own is None or "use_global_stats" not in field_names(own):
        return conf
    given, keeps = getattr(conf, own.field), {"use_global_stats": True}
    return conf.replace(**{own.field: keeps if given is None else given.replace(**keeps)})
