"""Where layers read and write records: settings that several layers share, and that jobs are checked by."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Natural, Positive


class StoreConf(Settings):
    """The store from which an input layer reads records, or to which an output layer writes results.

    In Python, ``records`` may be a source of records (:func:`dsinga.data.open_records`), which the layer reads in place
    of ``path``. It is not a field of the schema: copies keep it, job files and pickles leave it out.
    """

    _records: ClassVar[Any] = None

    backend: str | None = setting(None, "the format of the store; told by its path and contents without it")
    path: str | None = setting(None, "the path of the store")
    separator: str = setting(",", "what separates the numbers of a text file")
    mean_file: str | None = setting(None, "the path of the mean that is subtracted from a record")
    std_file: str | None = setting(None, "the path of the standard deviations that a record is divided by")
    mean_value: float | None = setting(None, "a number that is subtracted from all numbers of a record")
    std_value: Positive | None = setting(None, "a number that all numbers of a record are divided by")
    batchsize: list[Count] = setting([], "the rows of a batch; of several numbers each worker has its own")
    shape: list[Count] = setting([], "the shape of a record; that of the store without it")
    encoded: bool = setting(False, "whether the records are encoded images")
    random_skip: Natural = setting(0, "the largest number of records to skip at the start")
    has_label: bool = setting(True, "whether the records have labels")
    prefetching: bool = setting(False, "has no effect: batches are always read ahead")
    data: str | None = setting(None, "the array of records in a zarr group; guessed without it; beyond SINGA")
    label: str | None = setting(
        None, 'the array of labels in a zarr group, "" for no labels; guessed without it; beyond SINGA'
    )

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


class DataConf(Settings):
    """Settings of kLMDBData and kShardData."""

    path: str = required("the path of the store")
    batchsize: Count = required("the rows of a batch")
    random_skip: Natural = setting(0, "the largest number of records to skip at the start")
