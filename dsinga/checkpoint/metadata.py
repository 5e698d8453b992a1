"""Reads and writes ``checkpoint.json``: a checkpoint's plain values, and fingerprints of its other files.

It is one JSON object. ``checksum`` is the CRC-32 of all other fields, without spaces and with sorted keys. Files of
format 1 have none.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json
from dsinga.checkpoint.tensor_files import Fingerprint, fingerprint

FORMAT = 2
PARAMS, STATE, METADATA = "params.safetensors", "state.safetensors", "checkpoint.json"
LOOP = "loop.safetensors"  # which checkpoints without such arrays lack
STEP = re.compile(r"step(\d{1,18})")  # the name of a checkpoint's folder
# The most bytes of a file that is read as metadata; the text of a job is its largest part.
MOST_BYTES = 64 << 20
# The fields, and their types.
FIELDS = {"format": int, "step": int, "params": dict, "state": dict, "files": dict, "meta": dict}


class DamagedFile(UserError):
    """Raised if a file of a checkpoint is missing or was changed."""


class Metadata(NamedTuple):
    """The contents of ``checkpoint.json``, which describes a checkpoint.

    ``files`` has the fingerprints of the other files by name, ``state`` the names of the updater's arrays.
    """

    step: int
    meta: dict[str, Any]
    loop: dict[str, Any]
    files: dict[str, Fingerprint]
    state: tuple[str, ...]


def write_metadata(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write ``checkpoint.json`` with a checksum, and flush it to the disk."""
    fields = {"format": FORMAT, **fields}
    with open(folder / METADATA, "w", encoding="utf-8") as file:
        json.dump({**fields, "checksum": _checksum(fields)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read_metadata(folder: Path) -> Metadata:
    """Read ``checkpoint.json``, and check that it is undamaged.

    Raises DamagedFile if it is missing or damaged, UserError for a newer format.
    """
    path = folder / METADATA
    try:
        fields = read_json(path, MOST_BYTES)
        return _checked(path, fields)
    except UserError:
        raise
    except FileNotFoundError:
        raise DamagedFile(f"{folder} is not a checkpoint: it has no {METADATA}") from None
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: {str(error)[:200]}") from None


def check_file(path: Path, expected: Fingerprint) -> None:
    """Raise DamagedFile if a file has changed since its ``expected`` fingerprint."""
    try:
        actual = fingerprint(path)
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror or error}") from None
    if actual != expected:
        raise DamagedFile(
            f"{path} is damaged: it has {actual.bytes} bytes with CRC-32 {actual.crc32:08x}, but {expected.bytes} "
            f"bytes with {expected.crc32:08x} were written"
        )


def _checked(path: Path, fields: Any) -> Metadata:
    """Return the metadata in a JSON object; ValueError, TypeError or KeyError mean damage."""
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    checksum = fields.pop("checksum", None)
    version = fields.get("format")
    is_intact = checksum == _checksum(fields)
    if type(version) is int and version > FORMAT and (is_intact or checksum is None):
        raise UserError(f"{path} has format {version}, newer than this dsinga can read; upgrade dsinga")
    if not is_intact and (checksum is not None or version != 1):
        raise ValueError("its checksum is not that of its contents")
    for name, kind in FIELDS.items():
        if type(fields.get(name)) is not kind:
            raise ValueError(f"{name} is {str(fields.get(name))[:40]!r}, not of the type {kind.__name__}")
    step, loop = fields["step"], fields.get("loop", {})
    if not 0 <= step < 1 << 63 or not isinstance(loop, dict):
        raise ValueError(f"its step is {str(step)[:40]}, or its loop is not an object")
    files = {name: _fingerprint(name, fields["files"][name]) for name in (PARAMS, STATE, *fields["files"])}
    return Metadata(step, fields["meta"], loop, files, tuple(fields["state"]))


def _fingerprint(name: str, fields: Any) -> Fingerprint:
    is_known = name in (PARAMS, STATE, LOOP) and isinstance(fields, dict)
    if not is_known or any(type(value) is not int for value in fields.values()):
        raise ValueError(f"files has {name[:40]!r} with {str(fields)[:80]}")
    return Fingerprint(**fields)


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
