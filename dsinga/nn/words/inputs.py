"""``nn.Input``, and layers that preprocess or augment records while they are read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Unpack

import numpy as np

from dsinga.base.arguments import check_range, is_whole, unknown_name, value_text, with_types
from dsinga.base.errors import UserError
from dsinga.data import DataSource
from dsinga.job import AugmentConf, Phase, StoreConf
from dsinga.job.message import field_names
from dsinga.layers import RecordInfo
from dsinga.nn.words.augment import augmentation_functions
from dsinga.nn.words.derived import Derived, called_by_name, derived_function, settings_field
from dsinga.nn.words.keras_arguments import check_names, without_defaults
from dsinga.nn.words.windows import refuse_records_channels_last, require
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerArguments, LayerBuilder, Symbol, layer
from dsinga.nn.writing.writer import LayerWriter, Write, make_conf
from dsinga.reading.open_layer import augmented_info

INPUT = "_input"  # the kind of an input's builder
DEFAULT_NAME = "data"


@with_types
def Input(
    shape: int | Sequence[int] | None = None,
    name: str | None = None,
    type: str = "kRecordInput",
    data_format: str | None = None,
    **store: Any,
) -> Symbol:
    """Return the symbolic tensor of an input layer, which reads records and their labels.

    Args:
        shape: shape of one record; by default the data's. None stands for any size: ``(None,)`` accepts code sequences
            of several lengths, also as a list of lists; layers above nn.Embedding learn where each ends.
        name: name of the input layer, by default "data" (then "data_1").
        type: type of the input layer.
        data_format: "channels_last" for records that are images (H, W, C) or volumes (D, H, W, C), as in Keras. Then
            ``shape``, image labels and outputs have this order; layers still get (B, C, H, W). The default is
            :func:`image_data_format`, "channels_first" unless you set it. If you give no ``data_format``, square
            records with 1, 3 or 4 last channels, such as (28, 28, 1), are read as channels last, and the log says so.
        store: further fields of its ``store_conf``: ``augment``, a list of random changes of training records, as
            ``[nn.augment.RandomCrop(pad=4), nn.augment.RandomFlip()]``, or ``random_skip``.

    Raises UserError for an unknown field, and for a shape that is not whole numbers above 0.

    Examples:
        >>> from dsinga import nn
        >>> nn.Input(shape=(3, 32, 32)).shape
        (None, 3, 32, 32)
    """
    if store.get("dtype") in ("string", "str", str):  # texts: TextVectorization knows their codes
        del store["dtype"]
        shape = None
    store = without_defaults("Input", inspect.signature(Input), store)
    if store:
        check_names("Input", ["shape", "name", "type", "data_format", *field_names(StoreConf)], store)
    are_images = isinstance(shape, Iterable) and len([*shape]) in (3, 4)
    format_given = data_format is not None
    data_format = check_data_format(data_format or (_data_format[0] if are_images else "channels_first"))
    if "augment" in store:
        store["augment"] = _augmentations(store["augment"])
    store |= {"channels_last": True} if data_format == "channels_last" else {}
    sizes = [shape] if shape is None or not isinstance(shape, Iterable) else [*shape]
    if shape is not None and not all(size is None or is_whole(size, 1) for size in sizes):
        raise UserError(
            f"Input: shape is that of one record, a whole number above 0 for each axis, or None for any, not {shape!r}"
        )
    return _input(shape=shape, name=name or DEFAULT_NAME, type=type, store=store, format_given=format_given)()


def number_inputs(builders: Sequence[LayerBuilder]) -> None:
    """Name a model's unnamed inputs "data", "data_1", .... Raises UserError for equal names."""
    for place, builder in enumerate(builders):
        taken = [earlier.name for earlier in builders[:place]]
        if builder.name == DEFAULT_NAME in taken:
            numbered = (f"{DEFAULT_NAME}_{number}" for number in range(1, len(builders) + 1))
            builder.name = next(name for name in numbered if name not in [any_input.name for any_input in builders])
        elif builder.name in taken:
            raise UserError(f"two inputs are called {builder.name!r}; name them, as in nn.Input((4,), name='words')")


def check_data_format(data_format: Any) -> str:
    """Check ``data_format`` and return it. Raises UserError unless it is "channels_first" or "channels_last"."""
    if data_format not in ("channels_first", "channels_last"):
        raise UserError(f'data_format is "channels_first" or "channels_last", not {data_format!r}')
    return str(data_format)


_data_format = ["channels_first"]


@with_types
def set_image_data_format(data_format: str) -> None:
    """Set the default axis order of images and volumes for inputs made later."""
    _data_format[0] = check_data_format(data_format)


@with_types
def image_data_format() -> str:
    """Return the default axis order of images, "channels_first" or "channels_last"."""
    return _data_format[0]


def _augmentations(given: Any) -> list[AugmentConf]:
    """Check an input's augmentations and return them as a list."""
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    for item in items:
        if not isinstance(item, (AugmentConf, Mapping)):
            remedy = f"call it: nn.augment.{item.__name__}()" if callable(item) else "give nn.augment.RandomFlip()"
            raise UserError(f"Input: augment is a list of random changes, not of {value_text(item)}; {remedy}")
    return items


@layer
def _input(
    shape: Any = None,
    type: str = "kRecordInput",
    store: Any = None,
    format_given: bool = False,
    **common: Unpack[LayerArguments],
) -> Write:
    """Write the input layer of a job; ``store`` has fields of its store_conf."""

    def write(writer: LayerWriter) -> Feature:
        sizes = None if shape is None else tuple(shape) if isinstance(shape, Iterable) else (shape,)
        fixed = None if sizes is None or None in sizes else sizes
        fields = {**(store or {}), **({} if fixed is None else {"shape": list(fixed)})}
        conf = writer.net.inputs[writer.name] = make_conf(writer.name, type, [], store_conf=fields)
        data = writer.net.record_shapes.get(writer.name)
        pairs = zip(data or (), sizes or (), strict=False)
        is_other = data and sizes and (len(data) != len(sizes) or any(b not in (a, None) for a, b in pairs))
        is_larger = fixed and data is not None and not store and math.prod(fixed) != math.prod(data)
        if is_larger or (is_other and not fixed):
            remedy = f"give nn.Input the shape of one record, nn.Input({data})"
            raise UserError(f"records have shape {data}, but the model's input {writer.name!r} takes {sizes}; {remedy}")
        record = fixed if fixed is not None else data
        is_last = bool(store and store.get("channels_last"))
        if is_last and fixed and len(fixed) in (3, 4) and data == (fixed[-1], *fixed[:-1]) != fixed:
            raise UserError(
                f"the input {writer.name!r} takes images (height, width, channels), as data_format says, but records "
                f"have the shape {data}; leave data_format out, or give x.transpose(0, 2, 3, 1)"
            )
        if record is not None:
            if (store or {}).get("augment") and not (is_last or format_given):
                refuse_records_channels_last(writer, writer.name, record)
            record = augmented_info(conf, RecordInfo(record, 1, has_labels=False), np.uint8, 0, Phase.kTest)[0].shape
        if is_last and record is not None:
            if len(record) not in (3, 4):
                raise UserError(
                    f"the input {writer.name!r} takes images (height, width, channels), as data_format says, not "
                    f"records of the shape {record}"
                )
            record = (record[-1], *record[:-1])
        feature = Feature(writer.name, record, is_input=True, records=writer.name, channels_last=is_last)
        return feature._replace(any_length=sizes == (None,))

    return write


def source_function(name: str, type: str, cls: Any) -> Any:
    """Make the function ``nn.NAME`` for a user's data source."""

    def function(path: str | None = None, **arguments: Any) -> DataSource:
        source: DataSource = cls(path, *settings_field(name, cls.Conf, arguments).values())
        return source

    path = inspect.signature(function).parameters["path"]
    first = path.replace(default=path.empty) if cls.needs_path else path
    return called_by_name(derived_function(name, cls, function, [first]))


# Functions of users' sources: nn.Raw("blobs.raw", width=4) for a class registered as Raw.
source_functions = Derived("source", source_function, lambda _, cls: issubclass(cls, DataSource))


@layer
def Rescaling(scale: float, offset: float = 0.0, **common: Unpack[LayerArguments]) -> Write:
    """Computes x·scale + offset: while reading records if directly after nn.Input, else by a kArithmetic layer."""
    if not _is_number(scale) or not _is_number(offset) or scale == 0:
        raise UserError(f"Rescaling: scale is a number other than 0 and offset a number, not {scale!r} and {offset!r}")

    def write(writer: LayerWriter) -> Feature:
        if writer.source.is_input:
            return normalise(writer, mean_value=-offset / scale if offset else None, std_value=1 / scale)
        scaled = writer.add("kArithmetic", arithmetic_conf={"operator": "MULTIPLY", "number": scale})
        if not offset:
            return scaled
        return writer.extra("offset", "kArithmetic", scaled, arithmetic_conf={"operator": "ADD", "number": offset})

    return write


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def normalise(writer: LayerWriter, **fields: Any) -> Feature:
    """Let the input layer normalise records while it reads them: set ``fields`` in its store_conf."""
    source = writer.source
    conf = writer.net.inputs.get(source.layer)
    settings = {name: value for name, value in fields.items() if value is not None}
    if conf is not None:
        assert conf.store_conf is not None, conf
        conf.store_conf = conf.store_conf.replace(**settings)
    return source._replace(is_input=False)


@layer
def RandomCrop(height: int, width: int, pad: int = 0, **common: Unpack[LayerArguments]) -> Write:
    """Crops images at a random place in training, otherwise in the centre (kImagePreprocess).

    First, ``pad`` pixels of zeros are added around images. The crop is square.
    """

    def write(writer: LayerWriter) -> Feature:
        require(writer)
        if height != width:
            raise writer.fail(f"crops squares, not {height} x {width}; give height and width one size")
        return writer.add("kImagePreprocess", rgbimage_conf={"cropsize": height, "pad": pad})

    return write


@layer
def RandomFlip(mode: str = "horizontal", **common: Unpack[LayerArguments]) -> Write:
    """Mirrors every other image at random in training (kImagePreprocess).

    ``mode`` may also be "vertical" or "horizontal_and_vertical", while records are read.
    """
    if mode not in (shares := {"horizontal": 0.5, "vertical": 0.0, "horizontal_and_vertical": 0.5}):
        raise unknown_name("mode of RandomFlip", mode, shares)

    def write(writer: LayerWriter) -> Feature:
        if mode != "horizontal":
            return augmented(writer, "RandomFlip", horizontal=shares[mode], vertical=0.5)
        require(writer)
        return writer.add("kImagePreprocess", rgbimage_conf={"mirror": True})._replace(records=writer.source.records)

    return write


@layer
def RandomTranslation(
    height_factor: float, width_factor: float, fill_mode: str = "reflect", **common: Unpack[LayerArguments]
) -> Write:
    """Shifts images at random in training by at most these shares of height and width, while records are read.

    It must follow nn.Input, perhaps after other random changes.
    """
    if fill_mode != "reflect":
        raise UserError(f'RandomTranslation: fill_mode is "reflect", not {fill_mode!r}; leave it out')
    for name, factor in (("height_factor", height_factor), ("width_factor", width_factor)):
        check_range(f"{name} of RandomTranslation", factor, 0, 1)
    return lambda writer: augmented(writer, "RandomTranslation", height=height_factor, width=width_factor)


@layer
def RandomRotation(factor: float, fill_mode: str = "constant", **common: Unpack[LayerArguments]) -> Write:
    """Turns images at random in training, while records are read, by at most this share of a circle.

    Pixels from outside are 0; Keras's default is a mirror image.
    """
    if fill_mode != "constant":
        raise UserError(f'RandomRotation: fill_mode is "constant", zeros, not {fill_mode!r}; leave it out')
    check_range("factor of RandomRotation", factor, 0, 1)
    return lambda writer: augmented(writer, "RandomRotation", degrees=360 * factor)


def augmented(writer: LayerWriter, kind: str, **settings: float) -> Feature:
    """Add a random change to the input's ``augment`` list."""
    require(writer)
    change = augmentation_functions[kind](**settings)
    name = writer.source.records
    if not name:
        raise writer.fail(f"is done where records are read: put it after nn.Input, not after {writer.source.layer!r}")
    conf = writer.net.inputs.get(name)
    if conf is not None and conf.store_conf is not None:
        conf.store_conf = conf.store_conf.replace(augment=[*conf.store_conf.augment, change])
    return writer.source
