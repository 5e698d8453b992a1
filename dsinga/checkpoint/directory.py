"""Checkpoint directories: all that a bit-exact resume needs, either complete or not there.

``<root>/step<N>/`` holds ``params.safetensors`` (params by name), ``state.safetensors`` (the updater's state as
"param/slot") and ``checkpoint.json`` (format, step, names and shapes, fingerprints of the two files, and what the
caller wants remembered: seed, job, topology). Random numbers and the order of records are functions of seed and step.

A directory is written under a temporary name, brought to the disk, and renamed. One process writes to a root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsinga.checkpoint.tensors import Arrays, Fingerprint, read_safetensors, write_tensors
from dsinga.errors import RunError, UserError

FORMAT = 1
PARAMS, STATE, ABOUT = "params.safetensors", "state.safetensors", "checkpoint.json"


class Checkpoint(NamedTuple):
    """The params by name, the updater's state by param and slot, after ``step`` steps; ``meta`` is the caller's."""

    step: int
    params: Arrays
    state: dict[str, Arrays]
    meta: dict[str, Any]


def write_checkpoint(
    root: str | os.PathLike[str],
    step: int,
    params: Mapping[str, np.ndarray],
    state: Mapping[str, Mapping[str, np.ndarray]],
    meta: Mapping[str, Any],
) -> Path:
    """Write ``<root>/step<step>`` and return its path.

    A checkpoint of that step is renamed away just before and removed just after; whoever is killed between the two
    renames leaves none of that step. ``meta`` is plain data that JSON can hold. Raises RunError, leaving no trace, if
    the disk does not take it.
    """
    final = Path(root) / f"step{step}"
    partial, replaced = final.with_name(f".step{step}.partial"), final.with_name(f".step{step}.replaced")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _clear(final.parent)
        partial.mkdir()
        _fill(partial, step, params, state, meta)
        if final.exists():
            final.rename(replaced)
        partial.rename(final)
        _sync(final.parent)
    except OSError as error:
        raise RunError(f"the checkpoint {final} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def latest(root: str | os.PathLike[str]) -> Path | None:
    """Return the complete checkpoint of the highest step under ``root``, or None if there is none."""
    steps = {
        int(match[1]): path
        for path in Path(root).glob("step*")
        if (match := re.fullmatch(r"step(\d+)", path.name)) and is_checkpoint(path)
    }
    return steps[max(steps)] if steps else None


def is_checkpoint(path: Path) -> bool:
    """Whether ``path`` is a directory with all files of a checkpoint."""
    return all((path / name).is_file() for name in (PARAMS, STATE, ABOUT))


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return what the checkpoint directory ``path`` holds, bit for bit as it was written.

    Raises UserError, naming the file, if one is missing, damaged, or of a format that this version does not know.
    """
    path = Path(path)
    about, marks = _read_about(path)
    state: dict[str, Arrays] = {}
    for name, array in read_safetensors(path / STATE, marks[STATE]).items():
        param, _, slot = name.rpartition("/")
        state.setdefault(param, {})[slot] = array
    return Checkpoint(about["step"], read_safetensors(path / PARAMS, marks[PARAMS]), state, about["meta"])


def read_checkpoint_params(path: Path) -> Arrays:
    """Return the params alone of the checkpoint directory ``path``; raises UserError as :func:`read_checkpoint`."""
    return read_safetensors(path / PARAMS, _read_about(path)[1][PARAMS])


def _fill(
    folder: Path,
    step: int,
    params: Mapping[str, np.ndarray],
    state: Mapping[str, Mapping[str, np.ndarray]],
    meta: Mapping[str, Any],
) -> None:
    flat = {f"{param}/{slot}": array for param, slots in state.items() for slot, array in slots.items()}
    about = {
        "format": FORMAT,
        "step": step,
        "params": {name: list(array.shape) for name, array in params.items()},
        "state": {name: list(array.shape) for name, array in flat.items()},
        "files": {
            PARAMS: write_tensors(folder / PARAMS, params)._asdict(),
            STATE: write_tensors(folder / STATE, flat)._asdict(),
        },
        "meta": dict(meta),
    }
    with open(folder / ABOUT, "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def _read_about(path: Path) -> tuple[dict[str, Any], dict[str, Fingerprint]]:
    """Return what ``checkpoint.json`` says, and the fingerprints of the other files."""
    file = path / ABOUT
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        if about["format"] > FORMAT:
            raise UserError(f"{file} is of format {about['format']}, newer than this dsinga knows; upgrade dsinga")
        if not isinstance(about["step"], int) or not isinstance(about["meta"], dict):
            raise ValueError("step and meta are not a number and an object")
        return about, {name: Fingerprint(**about["files"][name]) for name in (PARAMS, STATE)}
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path} is not a checkpoint: it has no {ABOUT}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged: {error!r}; use another checkpoint") from error


def _clear(root: Path) -> None:
    """Remove what a run that was killed has left."""
    for pattern in (".step*.partial", ".step*.replaced"):
        for leftover in root.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring the entries of a directory to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
