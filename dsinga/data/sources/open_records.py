"""Opens users' data as records: a path or URL, arrays, data frames, or their own source.

The components "records" list what else can be opened: kinds of objects, by the names of their types
(:class:`.arrays.Kind`), and formats of files (:mod:`.paths`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.base.arguments import checked
from dsinga.base.errors import UserError
from dsinga.base.registry import find, listed
from dsinga.data.array_kinds import ArrayOrder, in_order, is_number, is_path, order_of
from dsinga.data.record_source import RecordSource
from dsinga.data.sendable import naming_unsendable
from dsinga.data.sources.arrays import ARRAYS, Kind, Labels, Options, is_array


class DataSource(ABC):
    """Base class for reading your own kind of data, which a job names by ``backend`` in a ``store_conf``.

    Register a subclass by ``@register("source", "Name")``. Only the process that starts a run opens it.

    Attributes:
        Conf: declares the settings, a :class:`dsinga.job.Settings`; None for none.
        needs_path: whether a job must name a path.
        path: where the records are: an absolute path or a URL, None without a path.
        settings: the settings.
    """

    Conf: ClassVar[Any] = None
    needs_path: ClassVar[bool] = True
    settings: Any = None

    def __init__(self, path: str | os.PathLike[str] | None = None, settings: Any = None, roots: Sequence[str] = ()):
        if self.Conf is not None:
            self.settings = self.Conf() if settings is None else settings
            for fault in self.settings.all_faults():
                raise self.settings.error(*fault)
        self.roots = roots
        self.path = None
        if path is not None:
            from dsinga.data.filesystem import resolve  # which arrays do not need

            self.path = resolve(path, roots)

    @abstractmethod
    def open(self) -> Any:
        """Open the records, in any form that :func:`open_records` accepts: arrays, a pair (x, y), a RecordSource."""


@checked
def open_records(
    source: Any,
    *,
    data: str | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    dim: str | None = None,
    classes: Sequence[str] | None = None,
    roots: Sequence[str] = (),
) -> RecordSource:
    """Open data for training: a path or URL, arrays, a data frame, a dataset or a pair (x, y) as a RecordSource.

    Nothing is copied to disk. Bytes and booleans are read as uint8, int32 as int32, other numbers as float32, which
    rounds integers beyond 2^24; integer labels as int64.

    Records are recognised by the names data, x, image, feature, record and input, labels by label, y, class and target,
    in any case or plural. A single array without labels is used as records.

    In zarr arrays, numbers equal to ``_FillValue`` or ``missing_value`` become NaN; ``valid_range`` is ignored. Packed
    arrays (``scale_factor``, ``add_offset``), and integers with a ``_FillValue``, are refused: open them with
    ``xarray.open_zarr``. Chunks that are not stored are reported once, and refused if the fill value is null.

    *Dask arrays.* Chunks must have known sizes of at most 256 MiB, and divide records only. Each worker computes the
    chunks of its records again in each epoch. Arrays above 128 MiB with chunks above 1 MiB are shuffled by whole
    chunks. Integer labels, and float labels of up to 128 MiB, are computed once at the start.

    *Datasets.* Records are made again in each epoch. Random generators are seeded for each, so a job's seed gives the
    same bits. A DataLoader with ``shuffle=True`` is shuffled by dsinga, with ``shuffle=False`` read in order; one with
    another sampler or a ``collate_fn`` makes its own batches. Its ``num_workers`` has no effect.

    Args:
        source: one of
            - the path or URL of a store; a relative path is looked up in the working directory, then under ``roots``;
            - an array of records: numpy, dask, zarr, an xarray DataArray, or an object that numpy converts;
            - a pair (x, y) of such an array, a data frame or a path, and labels: an array, or the path of a zarr array;
            - an xarray Dataset, or a data frame of pandas or Dask;
            - a sequence of batches, like Keras's PyDataset: ``source[i]`` is the i-th batch, an array or a pair (x, y);
            - records by number, (x, y), x or a dict with "label": a Dataset of PyTorch or Hugging Face, a DataLoader;
            - a source of records, which is returned unchanged, or a :class:`DataSource`, which opens one.
        data: the zarr array, Dataset variable, or Hugging Face column that has the records; by default guessed by name.
        label: the zarr array, Dataset variable, or column of a data frame or Hugging Face Dataset that has the labels;
            "" for none. By default guessed; none in a data frame.
        columns: the feature columns of a data frame; by default all but ``label``.
        dim: the dimension of xarray objects along which samples are counted; by default the first.
        classes: the names of the labels 0, 1, ...; labels that are strings become their index in it.
        roots: folders where a relative path is looked up.

    Raises:
        UserError: ``source`` is of another type, cannot be read, or does not have numbers of the right shape.

    Examples:
        >>> import numpy as np
        >>> import dsinga
        >>> len(dsinga.data.open_records(np.zeros((100, 4))))
        100
    """
    if isinstance(source, RecordSource):
        return source
    options = Options(data, label, columns, dim, classes, roots)
    if isinstance(source, DataSource):
        _check_options(options, "a DataSource", ("classes",))
        return open_records(source.open(), classes=classes, roots=roots)
    if is_path(source):
        from dsinga.data.sources.paths import open_store, refuse_numpy_file  # which arrays do not need

        refuse_numpy_file(source)
        _check_options(options, "a path or URL", ("data", "label"))
        return open_store(source, roots=roots, data=data, label=label)
    return _open_objects(*_pair(source), options)


def _open_objects(x: Any, y: Any, options: Options) -> RecordSource:
    kind = _kind_of(x)
    if kind is None:
        raise _refusal(x)
    _check_options(options, kind.words, [name for name in kind.options if y is None or name != "label"])
    classes = options.classes
    with naming_unsendable({"x": x, "y": y}):
        records = kind.records(x, y, options)
        if isinstance(records, RecordSource):
            return records
        location, column, y, name, order = records
        if y is None:
            return RecordSource(location, column, classes=classes or ())
        labels, classes = open_labels_of(y, name, column.length, options)
        labels.order = order or labels.order
    return RecordSource(location, column, labels, classes=classes or ())


def open_labels_of(y: Any, name: str, length: int, options: Options) -> Labels:
    """Open the labels ``y`` of ``length`` records as a column, and return class names if known."""
    kind = _kind_of(y) or ARRAYS  # which says why it does not convert
    labels, classes = kind.labels(y, name, length, options)
    labels.order = order_of(y)
    return labels, classes


def _kind_of(value: Any) -> Kind | None:
    if is_path(value):
        from dsinga.data.sources.paths import PATHS  # which arrays do not need

        return PATHS
    for base in () if isinstance(value, (np.ndarray, list)) else type(value).__mro__[:-1]:
        of_type = find("records", f"{base.__module__.partition('.')[0]}.{base.__name__}")
        if of_type is not None and (kind := of_type(value)) is not None:
            return kind
    if is_array(value) and not hasattr(type(value), "on_epoch_end"):
        return ARRAYS
    from dsinga.data.sources.data_loaders import drawn_kind  # which few need

    return drawn_kind(value)


def _pair(source: Any) -> tuple[Any, Any]:
    if not isinstance(source, tuple):
        return source, None
    if len(source) != 2:
        raise UserError(f"a tuple of records has 2 parts, x and y, not {len(source)}")
    return source


def _check_options(options: Options, words: str, known: Sequence[str]) -> None:
    for name in ("data", "label", "columns", "dim", "classes"):
        if getattr(options, name) is not None and name not in known:
            raise UserError(
                f"open_records has no use for {name}= with {words}; it takes {', '.join(known)}; leave it out"
            )


def _refusal(x: Any) -> UserError:
    kind, remedy = type(x).__name__, "give an array, a pair (x, y), a data frame, or the path or URL of a store"
    if type(x).__module__.startswith("zarr."):
        remedy = 'give its path, or its arrays: (group["x"], group["y"])'
    elif hasattr(x, "__iter__") and not hasattr(x, "toarray"):
        remedy = (
            "records are read again and by row: write its batches (x, y) to a store, once, by "
            "dsinga.data.write_store(path, batches), and give the path"
        )
    elif hasattr(x, "toarray"):
        remedy = "sparse matrices are not read; give x.toarray()"
    elif hasattr(x, "__getitem__"):
        remedy = "a dataset of records by number needs a method __len__(self)"
    return UserError(f"records cannot be read from a {kind}; {remedy}")


class RecordNames(NamedTuple):
    """The names of classes, columns and dimensions of records, so that predictions use training's order.

    Attributes:
        classes: the names of the labels 0, 1, ...
        order: the dimensions of an xarray object and the labels along them, or the columns of a data frame.
    """

    classes: tuple[str, ...] = ()
    order: ArrayOrder = ()
    label_order: ArrayOrder = ()

    @classmethod
    def of(cls, source: Any) -> RecordNames:
        """Return the names of the classes, columns and dimensions of a source of records."""
        orders = [column.order for column in getattr(source, "columns", ())]
        return cls(tuple(map(str, getattr(source, "classes", ()) or ())), *orders[:2])

    @classmethod
    def of_params(cls, params: Any) -> dict[str, RecordNames]:
        """Return the names of classes and columns that params were trained with, by input layer."""
        try:
            return {name: cls(*map(as_tuples, parts)) for name, parts in getattr(params, "names", {}).items()}
        except TypeError as error:
            raise UserError(
                f"the names of records in the params are damaged ({error}); save the params again"
            ) from None

    def or_else(self, other: RecordNames) -> RecordNames:
        """Fill in unknown names from ``other``."""
        return RecordNames._make(here or there for here, there in zip(self, other, strict=True))


def as_tuples(names: Any) -> Any:
    """Turn nested lists of names, as read from JSON, into tuples."""
    if not isinstance(names, (str, list, tuple)):
        raise TypeError("a name is no text")
    return names if isinstance(names, str) else tuple(map(as_tuples, names))


def open_like(source: Any, names: RecordNames, roots: Sequence[str] = (), phase: str = "") -> RecordSource:
    """Open data for a trained net: like :func:`open_records`, with columns and classes in the order of ``names``.

    Columns, dimensions and labelled points are found by name, in any order. Categories and string labels get the codes
    of their classes. Raises UserError for unknown names.
    """
    options: dict[str, Any] = {}
    x, y = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if not isinstance(source, (RecordSource, DataSource)) and not is_path(source):
        if names.classes and y is not None:
            options["classes"] = names.classes
        x, y = in_order(x, names.order), in_order(y, names.label_order)
        source = x if y is None else (x, y)
    opened = open_records(source, roots=roots, **options)
    check_names(opened, names, phase)
    return opened


def check_names(source: Any, names: RecordNames, phase: str = "") -> None:
    """Raise UserError if records have other classes or columns than in training."""
    given = RecordNames.of(source)
    pairs = [("labels", "stand for the classes", given.classes, names.classes, False)]
    for what, here, there in (("records", given.order, names.order), ("labels", given.label_order, names.label_order)):
        for axis, known in zip(here[1:], there[1:], strict=False):
            is_field = all(map(is_number, known[1:]))  # whose points may be others
            if axis[0] == known[0] or len(here) == len(there) == 2:
                pairs.append((what, f"have along {axis[0]!r}", axis[1:], known[1:], is_field))
    of_phase = f" of phase {phase}" if phase else ""
    for what, verb, labels, expected, may_differ in pairs:
        is_other = labels and expected and labels != expected
        if is_other and not (may_differ and sorted(labels) != sorted(expected)):
            places = (place for place, pair in enumerate(zip(labels, expected, strict=False)) if pair[0] != pair[1])
            place = next(places, min(len(labels), len(expected)))
            raise UserError(
                f"the {what} of {source.location}{of_phase} {verb} {listed(labels)}, those of training "
                f"{listed(expected)}: number {place} is another; give the same in the same order"
            )
