"""Where the extensions that write files write them."""

from __future__ import annotations

import os
from pathlib import Path

from dsinga.errors import UserError
from dsinga.extensions.loop_view import LoopView


def choose_path(loop: LoopView, given: str | os.PathLike[str] | None, name: str, field: str) -> Path:
    """Return the path ``given``, by default ``name`` in the workspace of the run.

    Raises UserError, which names ``field``, for a run without a workspace that is not told where to write.
    """
    if given is not None:
        return Path(given)
    if loop.workspace is None:
        raise UserError(f'it does not know where to write: give it {field}, as in "{name}", or the run a workspace')
    return loop.workspace / name
