"""Chooses the paths of the files that extensions write, and checks them."""

from __future__ import annotations

import os
from pathlib import Path

from dsinga.extensions.extension import Extension


def choose_path(
    extension: Extension, workspace: Path | None, given: str | os.PathLike[str] | None, name: str, field: str
) -> Path:
    """Return the path ``given``, by default ``name`` in the workspace of the run.

    Raises UserError, which names ``field``, for a run without a workspace that is not told where to write, and for a
    place where nothing can be written.
    """
    if given is None and workspace is None:
        raise extension.error(f'give it {field}, as in {field}: "{name}", or the run a workspace to write to', field)
    if given is not None and "://" in str(given):
        raise extension.error(f"it writes local files only, not {given}; give it another {field}", field)
    path = Path(given) if given is not None else (workspace or Path()) / name
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK) or (existing != path and not existing.is_dir()):
        raise extension.error(f"{path} cannot be written, because of {existing}; give it another {field}", field)
    return path
