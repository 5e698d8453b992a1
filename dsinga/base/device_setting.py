"""The setting ``dsinga.device``, read without an import of Dask where Dask's configuration cannot have it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def read_device() -> str:
    """Return the setting ``dsinga.device``: "auto", "cpu" or "gpu". Raises UserError for another one."""
    is_named = "dask.config" in sys.modules or any(name.startswith("DASK_") for name in os.environ)
    if not is_named and not any(map(_names_dsinga, _files())):
        return "auto"
    from dsinga.base.settings import read_setting  # it imports Dask's configuration

    return str(read_setting("device"))


def _files() -> list[Path]:
    """Return the files from which Dask takes its configuration where no environment variable names one."""
    folders = Path("/etc/dask"), Path(sys.prefix) / "etc" / "dask", Path.home() / ".config" / "dask"
    return [file for folder in folders if folder.is_dir() for file in folder.iterdir()]


def _names_dsinga(file: Path) -> bool:
    try:
        return "dsinga" in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
