"""The base class of a configured layer: checks of settings and sources, with errors of one sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf, Message
from dsinga.job.component import Settings
from dsinga.job.limits import out_of_range
from dsinga.job.message import field_types
from dsinga.ops.types import Shape

# What to do where a layer of images gets other records.
SHAPE_OF_RECORD = "give the shape of a record: nn.Input((channels, height, width)), store_conf in a job"


class ConfiguredLayer:
    """Base of layers that know their configuration and source shapes, for errors with name, file and line."""

    Conf: ClassVar[type[Settings] | None] = None
    settings: Any = None

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape]):
        self.conf = conf
        self.name = conf.name
        self.source_shapes = tuple(tuple(shape) for shape in source_shapes)
        if self.Conf is not None:
            self.settings = conf.settings_of(self.Conf)
        self._check_numbers()

    def _check_numbers(self) -> None:
        for message in (self.conf, *(value for value in vars(self.conf).values() if isinstance(value, Message))):
            if isinstance(message, Settings):
                for fault in message.all_faults():
                    raise self.fail(fault.text, message, fault.field)
            else:
                for field, _, value, allowed in out_of_range(message):
                    raise self.fail(f"{field} {allowed.fault(value)}", message, field)

    def expect_sources(self, count: int, optional: int = 0) -> None:
        """Raise UserError unless the layer has ``count`` source layers, and at most ``optional`` more."""
        sources = len(self.source_shapes)
        if not count <= sources <= count + optional:
            expected = "no source layer" if count == 0 else "1 source layer" if count == 1 else f"{count} source layers"
            if optional:
                expected = f"{count} or {count + optional} source layers"
            raise self.fail(f"takes {expected}, not {sources}; correct its srclayers", field="srclayers")

    def _expect_labels(self, source: int) -> None:
        rows, labels = self.source_shapes[0][0], self.source_shapes[source][0]
        if rows != labels:
            raise self.fail(
                f"{self.source_name(0)} gives {rows} rows, {self.source_name(source)} {labels} labels; "
                "give both the same batchsize",
                field="srclayers",
            )

    def source_name(self, index: int) -> str:
        """Return the quoted name of a source for errors, or its number if the configuration has no name."""
        names = self.conf.srclayers
        return repr(names[index]) if index < len(names) else f"source {index}"

    def fail(self, message: str, at: Message | None = None, field: str | None = None) -> Exception:
        """Return a UserError about this layer, with file and line; the caller raises it."""
        if at is None and self.settings is not None and field in field_types(type(self.settings)):
            at = self.settings
        return (at or self.conf).error(f"layer {self.name!r}: {message}", field)

    def expect_axes(self, counts: Sequence[int], takes: str, remedy: str = "", source: int = 0) -> Shape:
        """Return a source's shape, or raise UserError with the ``remedy`` unless it has one of ``counts`` axes."""
        shape = self.source_shapes[source]
        if len(shape) not in counts:
            text = f"takes {takes}, but {self.source_name(source)} gives {shape_text(shape)}"
            raise self.fail(f"{text}; {remedy}" if remedy else text, field="srclayers")
        return shape

    def expect_alike(self, fit: bool, remedy: str, second: int = 1, first: int = 0, verb: str = "compares") -> None:
        """Raise UserError, with both shapes and the ``remedy``, unless two sources fit."""
        if not fit:
            names = [f"{self.source_name(k)}, {shape_text(self.source_shapes[k])}" for k in (first, second)]
            raise self.fail(f"{verb} {names[0]}, with {names[1]}; {remedy}", field="srclayers")

    def expect_some_source(self) -> None:
        """Raise UserError if the layer has no source."""
        if not self.source_shapes:
            raise self.fail("takes at least 1 source layer, not 0; correct its srclayers", field="srclayers")

    def expect_channels(self) -> None:
        """Raise UserError unless the first source has channels, (B, C, ...)."""
        self.expect_axes(range(2, 33), "(batch, channels, ...)")

    def expect_setting(self, field: str, low: int, high: int, because: str) -> int:
        """Return a setting, or raise UserError with the reason unless it is in ``low`` to ``high``."""
        value: int = getattr(self.settings, field)
        if not low <= value <= high:
            raise self.fail(f"{field} is {value}, but {because}; give {low} to {high}", field=field)
        return value

    def expect_axis(self, field: str, first: int = 0) -> int:
        """Return a setting that names an axis of the first source, or raise UserError unless it does."""
        shape = self.source_shapes[0]
        return self.expect_setting(field, first, len(shape) - 1, f"{self.source_name(0)} gives {shape_text(shape)}")

    def expect_equal_groups(self, field: str, **counts: int) -> int:
        """Return a number of groups, or raise UserError unless it divides each of ``counts``."""
        groups: int = getattr(self.settings, field)
        for what, count in counts.items():
            if count % groups:
                text = f"cannot divide {count} {what} into {groups} equal groups"
                raise self.fail(f"{text}; give {field} a number that divides {count}", field=field)
        return groups

    def expect_numbers(self, field: str, counts: Collection[int], because: str) -> None:
        """Raise UserError, with the reason, unless a repeated setting has one of ``counts`` numbers."""
        count = len(getattr(self.settings, field))
        if count not in counts:
            raise self.fail(f"{field} has {count} numbers, but {because}", field=field)

    def image_shape(self) -> tuple[int, int, int]:
        """Return (C, H, W) of the first source; as in SINGA, a source (B, H, W) is an image of one channel."""
        shape = self.expect_axes((3, 4), "images (batch, channels, height, width)", SHAPE_OF_RECORD)
        channels, height, width = (1, *shape[1:]) if len(shape) == 3 else shape[1:]
        return channels, height, width


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text for errors: (3, 32, 32) as ``3 x 32 x 32``; shortened above eight axes."""
    sizes = list(map(str, shape))
    if len(sizes) > 8:
        sizes[4:] = [f"... ({len(sizes)} axes)"]
    return " x ".join(sizes) or "a single number"
