"""Shortens tracebacks of users' errors, and frees the arrays that a kept traceback would keep in memory."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from dsinga.base.errors import Diverged, UserError

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=UserError | Diverged)

# A fault in what a user gave is shown without frames of these packages and of the standard library.
PACKAGES = {"dask", "distributed", "dsinga", "numpy", "tornado", "xarray", "zarr"}
TRACEBACK = "DSINGA_TRACEBACK"  # the environment variable that shows them, where it is "all"

# A frame that has not ended although it does not run: clearing it would end its coroutine.
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@contextlib.contextmanager
def cleared_frames(package: str = "") -> Iterator[None]:
    """Free the variables of called functions when an error leaves the block.

    In the user's process only frames of ``package`` are cleared, so that a debugger shows the user's own variables.
    """
    try:
        yield
    except BaseException as error:
        clear_frames(error, package)
        raise


def clear_frames(error: BaseException, package: str = "") -> None:
    """Free the variables in the tracebacks of an error, its causes and contexts, in frames of ``package``."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        linked = errors.pop()
        if linked is None or id(linked) in seen:
            continue
        seen.add(id(linked))
        errors += [linked.__cause__, linked.__context__]
        traceback = linked.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if f"{frame.f_globals.get('__name__')}.".startswith(f"{package}." if package else ""):
                with contextlib.suppress(RuntimeError):  # it is running
                    frame.clear()
            traceback = traceback.tb_next


def clear_origin(error: BaseException | None) -> None:
    """Free the variables of functions that called a failed task."""
    traceback = None if error is None else error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame.f_back
        while frame is not None and not frame.f_code.co_flags & SUSPENDED:
            try:
                frame.clear()
            except RuntimeError:  # it is running
                break
            frame = frame.f_back
        traceback = traceback.tb_next


def public(function: F) -> F:
    """Let errors of a public function show only its own frame, and no other of dsinga.

    Only UserErrors and Diverged are shortened. Frames of user functions that dsinga called stay.
    ``DSINGA_TRACEBACK=all`` in the environment keeps all frames.
    """
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Any:
            try:
                return (yield from function(*args, **kwargs))
            except (UserError, Diverged) as error:
                raise shortened(error) from error.__cause__  # DSINGA_TRACEBACK=all shows the frames left out here

        return generate  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (UserError, Diverged) as error:
            raise shortened(error) from error.__cause__  # DSINGA_TRACEBACK=all shows the frames left out here

    return call  # type: ignore[return-value]


def shortened(error: E) -> E:
    """Drop frames of dsinga from the traceback of an error and its cause."""
    if not shows_all_frames():
        error.__traceback__ = _frames_of_user(error.__traceback__)
        context = None if error.__suppress_context__ else error.__context__
        cause = error.__cause__ or (context if context and _frames_of_user(context.__traceback__) else None)
        if cause is not None:
            cause.__traceback__ = _frames_of_user(cause.__traceback__)
        error.__cause__ = cause
    return error


def shows_all_frames() -> bool:
    """Whether ``DSINGA_TRACEBACK`` in the environment asks for whole tracebacks."""
    return os.environ.get(TRACEBACK) == "all"


def _frames_of_user(traceback: TracebackType | None) -> TracebackType | None:
    """Drop the frames of dsinga, its dependencies and the standard library from a traceback."""
    entries = []
    while traceback is not None:
        package = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if package not in PACKAGES and package not in sys.stdlib_module_names:
            entries.append(traceback)
        traceback = traceback.tb_next
    shown = None
    for entry in reversed(entries):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown
