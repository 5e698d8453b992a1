"""The settings of input layers, of dummy layers and of connection layers (SINGA 0.3's job.proto)."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Self

from dsinga.job.limits import Count, Natural, Positive
from dsinga.job.message import Message


class StoreConf(Message):
    """The store from which an input layer reads records, or to which an output layer writes results.

    Beyond SINGA: ``data`` and ``label`` name the arrays of records and labels in a zarr group; where they are left out,
    they are guessed from the names of the arrays. ``label: ""`` reads no labels.

    In Python, ``records`` may be a source of records (:func:`dsinga.data.open_records`), which the layer reads in place
    of ``path``. It is not a field of the schema: copies keep it, job files and pickles leave it out.
    """

    _records: ClassVar[Any] = None

    backend: str | None = None
    path: str | None = None
    separator: str = ","
    mean_file: str | None = None
    std_file: str | None = None
    mean_value: float | None = None
    std_value: Positive | None = None
    batchsize: list[Count] = field(default_factory=list)
    shape: list[Count] = field(default_factory=list)
    encoded: bool = False
    random_skip: Natural = 0
    has_label: bool = True
    prefetching: bool = False
    data: str | None = None
    label: str | None = None

    @property
    def records(self) -> Any:
        """The source that the layer reads in place of ``path``, or None."""
        return self._records

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("_records" if name == "records" else name, value)

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        # Nets are sent to every worker with the configurations of their layers; arrays are sent with the batch reader.
        return {name: value for name, value in vars(self).items() if name != "_records"}


class DataConf(Message):
    """Settings of kLMDBData and kShardData: the path of a store and the batch size."""

    path: str
    batchsize: Count
    random_skip: Natural = 0
