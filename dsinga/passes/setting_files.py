"""Tells whether Dask's configuration may have a setting, without the cost of importing Dask."""

from __future__ import annotations

import contextlib
import functools
import os
import site
import sys
from pathlib import Path


def may_be_set(name: str) -> bool:
    """Whether Dask's configuration may have a setting of this name, such as "dsinga"."""
    if "dask.config" in sys.modules or any(variable.startswith("DASK_") for variable in os.environ):
        return True
    return name in _text()


@functools.cache
def _text() -> str:
    """Return the text of Dask's default configuration files, with dashes for underscores."""
    prefixes = dict.fromkeys((Path(sys.prefix), *map(Path, site.PREFIXES)))
    folders = Path("/etc/dask"), *(prefix / "etc" / "dask" for prefix in prefixes), Path.home() / ".config" / "dask"
    texts = []
    for file in (file for folder in folders if folder.is_dir() for file in folder.iterdir()):
        with contextlib.suppress(OSError):
            texts.append(file.read_text(encoding="utf-8", errors="replace").replace("_", "-"))
    return "\n".join(texts)
