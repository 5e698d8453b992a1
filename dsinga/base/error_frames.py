"""Errors that end a run must not keep its memory: clears the local variables of the frames in their tracebacks.

A traceback refers to the local variables of all its frames: nets, params, futures of tasks. Whoever keeps the error (an
interactive session keeps the last one) would keep these too. And an error to which one of these variables refers, as a
future of Dask does to the error of its task, would stay until the garbage collector finds the cycle.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

# A frame that has not ended although it does not run: clearing it would end its coroutine.
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@contextlib.contextmanager
def cleared_frames(package: str = "") -> Iterator[None]:
    """Clear the frames of functions called within, when an error leaves the block; the error is raised unchanged.

    In tasks these are all frames, because nobody sees them: Dask sends the lines of a traceback, without variables. In
    the user's process they are those of ``package``: a debugger shows the variables of the user's own functions.
    """
    try:
        yield
    except BaseException as error:
        clear_frames(error, package)
        raise


def clear_frames(error: BaseException, package: str = "") -> None:
    """Clear the local variables of the frames of ``package`` in the tracebacks of an error, its causes and contexts.

    Frames that are running keep theirs.
    """
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
    """Clear the frames of the callers in the traceback of a task's error.

    The frame of Dask's own function refers to the error, so that the two would keep each other alive.
    """
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
