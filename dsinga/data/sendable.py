"""Checks that records can be sent to other processes, and names the array and task that cannot."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_a, is_dask_collection, is_dask_frame

# How the TypeError begins that Dask raises for a graph.
DASK_REFUSES = "Could not serialize object of type"

_log_of_dask = logging.getLogger("distributed.protocol.pickle")


def check_sendable(sources: Iterable[Any]) -> None:
    """Raise UserError, naming the array, if records cannot be sent to other processes."""
    for source in sources:
        for column in source.columns:
            if why := column.why_unsendable():
                raise unsendable(f"{source.location}: {column.name!r}", why)


def unsendable(what: str, why: str, instead: str = ", or give a numpy array or the path of a store") -> UserError:
    """Return the error that an object cannot be sent to other processes."""
    return UserError(
        f"{what} cannot be sent to Dask workers ({why}); open files and make locks within the functions that use "
        f"them{instead}"
    )


def why_unsendable(value: Any) -> str:
    """Return Dask's error text if it cannot pickle ``value``, else ""."""
    from distributed.protocol.pickle import dumps

    with pickling_not_logged():
        try:
            dumps(value, buffer_callback=lambda buffer: None)
        except Exception as error:  # of the user's classes: any
            return f"{type(error).__name__}: {error}"
    return ""


def why_graph_unsendable(graph: Mapping[Any, Any]) -> str:
    """Return the first task of a Dask graph that cannot be pickled, with the reason."""
    from dask.utils import key_split

    for key, task in graph.items():
        if why := why_unsendable(task):
            return f"its task {key_split(key)!r}: {why}"
    return ""


@contextlib.contextmanager
def naming_unsendable(arrays: Mapping[str, Any]) -> Iterator[None]:
    """Turn Dask's error for a graph that cannot be pickled into a UserError that names one of ``arrays``."""
    with pickling_not_logged():
        try:
            yield
        except TypeError as error:
            if not str(error.args[:1]).strip("('\"").startswith(DASK_REFUSES):
                raise
            for name, array in _named(arrays):
                if is_dask_collection(array) and (why := why_graph_unsendable(dict(array.__dask_graph__()))):
                    raise unsendable(f"{_kind(array)}: {name!r}", why) from None
            raise


def _named(arrays: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, array in arrays.items():
        if isinstance(array, tuple):
            yield from ((f"{name}[{number}]", part) for number, part in enumerate(array))
        else:
            yield name, array


def _kind(array: Any) -> str:
    return (
        "dask array"
        if is_a(array, "dask.array", "Array")
        else "dask data frame"
        if is_dask_frame(array)
        else type(array).__name__
    )


@contextlib.contextmanager
def pickling_not_logged() -> Iterator[None]:
    """Keep Dask from logging, in this thread, that an object cannot be pickled."""
    thread = threading.get_ident()

    def is_of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    _log_of_dask.addFilter(is_of_another_thread)
    try:
        yield
    finally:
        _log_of_dask.removeFilter(is_of_another_thread)
