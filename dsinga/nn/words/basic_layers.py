"""Layers of rows and channels: dense, dropout, normalisation, sums and parts of features; layers of any type."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dsinga.base.arguments import check_bool
from dsinga.base.errors import UserError
from dsinga.base.registry import find, lookup, nearest, registered
from dsinga.data import open_records
from dsinga.job import LayerConf, LayerType
from dsinga.job.message import field_types
from dsinga.layers.dense.normalisation import statistics_lists
from dsinga.nn.words.image_layers import refuse_channels_last
from dsinga.nn.words.inputs import normalise
from dsinga.nn.words.keras_arguments import check_names
from dsinga.nn.words.layer_adapters import channels_back, pixels_first
from dsinga.nn.writing.feature import Feature, axis_of, row_shape
from dsinga.nn.writing.symbol import COMMON, LayerArguments, LayerBuilder, layer
from dsinga.nn.writing.writer import LayerWriter, Write


@layer
def Flatten(**common: Unpack[LayerArguments]) -> Write:
    """Makes each row a vector, (B, n): a kReshape in the job where the next layer does not flatten its source itself.

    The numbers keep their order, that of channels, rows and columns of images; in Keras channels are last.
    """

    def write(writer: LayerWriter) -> Feature:
        source = writer.source
        return source._replace(flat=source.shape is not None and len(source.shape) > 1, is_input=False)

    return write


@layer
def SpatialDropout1D(rate: float, **common: Unpack[LayerArguments]) -> Write:
    """In training a share ``rate`` of the features of sequences (B, T, n) is 0, each at all steps (kDropout)."""
    return lambda writer: writer.add("kDropout", dropout_conf={"dropout_ratio": rate, "unit": "kFeature"})


@layer
def Masking(mask_value: float = 0.0, **common: Unpack[LayerArguments]) -> Write:
    """Leaves out the steps of sequences (B, T, n) at which all features are ``mask_value``, in the layers above.

    These learn where each sequence ends (kSequenceLength); later steps move forward. A sequence without any other step
    is refused.
    """

    def write(writer: LayerWriter) -> Feature:
        feature = writer.add("kSequenceLength", sequencelength_conf={"mask_value": mask_value, "anywhere": True})
        rows = row_shape(feature)
        return feature._replace(lengths=Feature(writer.name, None if rows is None else rows[:1]))

    return write


@layer
def Identity(**common: Unpack[LayerArguments]) -> Write:
    """Passes on its source; no layer of the job."""
    return lambda writer: writer.source


@layer
def BatchNormalization(
    momentum: float | None = None,
    epsilon: float = 1e-5,
    synchronized: bool = True,
    axis: int | None = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """Batch normalisation of each channel, axis 1, or -1 where records have their channels last (kBM).

    ``momentum`` is the share of the old running statistics, as in Keras; by default 0.9 (Keras: 0.99). With
    ``synchronized`` the statistics are those of the whole batch over all workers, as in one process; without it, which
    is Keras's default, those of each worker's rows. A layer that is not trainable normalises with its running
    statistics in training, too, and does not move them.
    """

    def write(writer: LayerWriter) -> Feature:
        rows = writer.rows(writer.source)
        if len(rows) == 2:
            raise writer.fail("normalises channels, axis 1, which of sequences are steps; use nn.LayerNormalization")
        refuse_channels_last(writer)
        if axis is not None and axis_of(writer.source, axis, rows) != 1:
            raise writer.fail(f"normalises channels, which are not the axis {axis} here; leave axis out")
        if momentum is not None and not 0 <= momentum < 1:
            raise writer.fail(f"momentum, the share of the old statistics, must be in [0, 1), not {momentum}")
        check_bool(f"synchronized of {writer.name}", synchronized)
        settings: dict[str, Any] = {} if momentum is None else {"momentum": round(1 - momentum, 12)}
        settings |= {} if epsilon == 1e-5 else {"epsilon": epsilon}
        settings |= {} if writer.settings["trainable"] else {"use_global_stats": True}
        settings |= {} if synchronized else {"synchronized": False}
        return writer.add("kBM", bm_conf=settings or None)

    return write


@layer
def LayerNormalization(
    axis: int | Sequence[int] = -1, epsilon: float = 1e-5, **common: Unpack[LayerArguments]
) -> Write:
    """Layer normalisation over the last axis, or over all axes from the first of ``axis`` on (kLayerNorm).

    Where records have their channels last, -1 are the channels.
    """

    def write(writer: LayerWriter) -> Feature:
        count = len(writer.rows(writer.source)) + 1
        axes = sorted(number % count for number in ([axis] if isinstance(axis, int) else axis))
        if not axes or axes != list(range(axes[0], count)) or axes[0] == 0:
            raise writer.fail(f"normalises the last axes of {count}, not the axes {axis}; give -1, or (-2, -1), ...")
        is_last = writer.source.channels_last and count in (4, 5) and axes[0] > 1
        if is_last and len(axes) > 1:
            raise writer.fail(f"of channels that are last normalises these, axis=-1, or all axes, not the axes {axis}")
        settings: dict[str, Any] = {} if axes[0] == 1 else {"first_axis": axes[0]}
        settings |= {} if epsilon == 1e-5 else {"epsilon": epsilon}
        if not is_last:
            return writer.add("kLayerNorm", layernorm_conf=settings or None)
        return channels_back(writer, writer.add("kLayerNorm", sources=pixels_first(writer), layernorm_conf=settings))

    return write


@layer
def Concatenate(axis: int = -1, **common: Unpack[LayerArguments]) -> Write:
    """Its sources, joined along ``axis`` (kConcate); -1 is the last one, the channels of images are axis 1.

    Where records have their channels last, axes count as there: -1 are the channels.
    """

    def write(writer: LayerWriter) -> Feature:
        if not writer.sources:
            raise writer.fail("takes several sources, as in nn.Concatenate()([x, y])")
        first = writer.sources[0]
        return writer.add("kConcate", concate_conf={"concate_dim": axis_of(first, axis, writer.rows(first))})

    return write


@layer
def Slice(parts: int, axis: int = 1, **common: Unpack[LayerArguments]) -> Write:
    """Its source, cut in ``parts`` along ``axis`` (kSlice): calling it gives a list of as many features."""

    def write(writer: LayerWriter) -> Feature:
        slice_dim = axis_of(writer.source, axis, writer.rows(writer.source))
        settings = {"slice_dim": slice_dim, "num_slices": parts}
        return hand_out(writer, writer.add("kSlice", slice_conf=settings))

    return write


@layer
def Split(parts: int, **common: Unpack[LayerArguments]) -> Write:
    """Its source, ``parts`` times (kSplit); nets need none, because one is added where a feature is used twice."""
    return lambda writer: hand_out(writer, writer.add("kSplit", split_conf={"num_splits": parts}))


def hand_out(writer: LayerWriter, whole: Feature) -> Feature:
    """Write a kDummy layer for each part, because nets hand out parts in the order of the layers of the net."""
    parts = (writer.extra(f"{number}", "kDummy", part) for number, part in enumerate(whole.parts))
    return whole._replace(parts=tuple(parts))


def Layer(type: str, **fields: Any) -> LayerBuilder:
    """Return a layer of any type, also of a user's: ``nn.Layer("kLRN", local_size=3)``; the base of users' classes.

    A class that inherits it defines ``call``; see :class:`dsinga.addons.functions.own_layers.OwnLayer`.

    ``fields`` are settings of its type, fields of a layer in a job file, and the arguments of every layer. Raises
    UserError for an unknown type or field.
    """
    if not isinstance(type, str):
        raise UserError(f'nn.Layer takes the name of a layer type, as in nn.Layer("kLRN"), not {type!r}')
    component = find("layer", type)
    if component is None and type not in LayerType.__members__:
        hint = nearest(type, [*LayerType.__members__, *registered("layer")])
        raise UserError(f"there is no layer type {type!r}{hint}")
    layer_fields = [name for name in field_types(LayerConf) if name not in ("name", "type", "srclayers", "user_type")]
    conf: Any = getattr(component, "Conf", None)
    names = [name for name in (() if conf is None else field_types(conf)) if name not in layer_fields]
    check_names(f"Layer({type!r})", [*dict.fromkeys([*names, *COMMON, *layer_fields])], fields)
    settings = {name: value for name, value in fields.items() if name not in COMMON}
    own = {name: settings.pop(name) for name in names if name in settings}
    if own:
        settings[conf.field] = own

    def write(writer: LayerWriter) -> Feature:
        return writer.add(type, **settings)

    return LayerBuilder(
        type.removeprefix("k"), write, {**fields, "type": type}, functools.partial(Layer, type, **fields)
    )


# class Scale(nn.Layer) inherits the base of users' layers.
Layer.__mro_entries__ = lambda bases: (lookup("hook", "users_layer"),)  # type: ignore[attr-defined]


BLOCK = 4096  # records that are read at a time


class _Normalization(LayerBuilder):
    """The layer of :func:`Normalization`."""

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Take the mean and the variance of records, whatever fit takes, instead of those that were given.

        They are those of each number along ``axis``; a number that is the same in all records gives 0. Raises UserError
        where ``steps`` are given, and for what is no records.
        """
        if steps is not None:
            raise UserError("adapt reads all records; give as many as are to be read, and leave steps out")
        mean, variance = _moments(data, self.settings.get("axis", -1))
        function, given = self.remake.func, {**self.remake.keywords}  # type: ignore[attr-defined]
        given |= {"mean": mean, "variance": np.where(variance > 0, variance, 1.0), "std": None}
        self.remake = functools.partial(function, **given)
        made = self.remake()
        self.write, self.settings = made.write, made.settings
        if self.values is not None:  # of models that have it already
            numbers = mean, np.sqrt(given["variance"])
            shapes = [value.shape for value in self.values if value is not None]
            self.values = [np.broadcast_to(*pair).astype(np.float32) for pair in zip(numbers, shapes, strict=True)]


def _moments(data: Any, axis: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance of records (n, ...) along an axis of theirs, over all others; float64."""
    source = open_records(data)

    def mean_of(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        means, counts = [], []
        for start in range(0, len(source), BLOCK):
            x = source.read(np.arange(start, min(start + BLOCK, len(source))))[0].astype(np.float64)
            kept = {number % x.ndim for number in ([] if axis is None else np.atleast_1d(axis))}
            others = tuple({*range(x.ndim)} - kept)
            means.append(function(x).mean(axis=others, keepdims=True))
            counts.append(len(x))
        return np.average(means, axis=0, weights=counts)

    mean = mean_of(lambda x: x)
    return mean.reshape(-1), mean_of(lambda x: np.square(x - mean)).reshape(-1)


@functools.partial(layer, builder=_Normalization)
def Normalization(
    mean: Any = None,
    variance: Any = None,
    mean_file: str | None = None,
    std_file: str | None = None,
    std: Any = None,
    invert: bool = False,
    axis: Any = -1,
    **common: Unpack[LayerArguments],
) -> Write:
    """(x - mean) / √variance, or with ``invert`` its inverse x·√variance + mean, which gives back the data's units.

    ``mean`` and ``variance``, the square of ``std``, are numbers, or arrays with a number for each channel or for each
    number of a row (kNormalization, whose params keep them in checkpoints): ``nn.Normalization([280.0], [64.0])``
    divides by 8. Without them ``adapt(records)`` finds those of each number along ``axis`` of the records, by default
    the last, or with None of all numbers. Directly after nn.Input, numbers are used where records are read, and so are
    ``mean_file`` and ``std_file``, stores with a number for each element or channel of a record.
    """
    if variance is not None and std is not None:
        raise UserError("Normalization: give the variance or the std, not both")
    if variance is not None:
        variance = np.asarray(variance, np.float64)
        std = np.sqrt(np.where(variance > 0, variance, 0))
    lists = statistics_lists(mean, std)

    def write(writer: LayerWriter) -> Feature:
        files = {"mean_file": mean_file, "std_file": std_file}
        if not invert and writer.source.is_input and all(len(numbers) == 1 for numbers in lists.values()):
            numbers = {f"{name}_value": values[0] for name, values in lists.items()}
            return normalise(writer, **numbers, **files)
        if any(files.values()):
            raise writer.fail("takes mean_file and std_file directly after nn.Input only; give arrays, mean and std")
        return writer.add("kNormalization", normalization_conf=_of_rows(writer, lists, invert))

    return write


def _of_rows(writer: LayerWriter, lists: Mapping[str, list[float]], invert: bool) -> dict[str, Any]:
    """Return the settings of the layer; of sequences (B, T, n) those of n features are repeated for each step."""
    rows = writer.rows(writer.source)
    if any(len(numbers) == rows[-1] != rows[0] for numbers in lists.values()):
        refuse_channels_last(writer)
    steps = rows[0] if len(rows) == 2 else 1
    by_step = {name: numbers * steps if [*rows[1:]] == [len(numbers)] else numbers for name, numbers in lists.items()}
    return by_step | ({"inverse": True} if invert else {})
