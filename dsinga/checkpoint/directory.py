"""Writing and reading checkpoint directories, which contain all that a bit-exact resume needs.

``<root>/step<N>/`` has ``params.safetensors`` (params by name), ``state.safetensors`` (the updater's state as
"param/slot") and ``checkpoint.json`` (format, step, names and shapes, the state of the training loop, fingerprints of
the other files, and the caller's metadata: seed, job, topology). Arrays of the loop's state, if it has any, are in
``loop.safetensors``. Random numbers and the order of records are functions of seed and step.

A checkpoint is either complete or absent: its directory is written under a temporary name, flushed to the disk, and
renamed. Only one process may write to a root.
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

from dsinga.checkpoint.nested_state import insert_arrays, separate_arrays
from dsinga.checkpoint.tensors import Arrays, Fingerprint, read_safetensors, write_tensors
from dsinga.errors import RunError, UserError

FORMAT = 1
PARAMS, STATE, METADATA = "params.safetensors", "state.safetensors", "checkpoint.json"
LOOP = "loop.safetensors"  # which checkpoints without such arrays lack


class Checkpoint(NamedTuple):
    """A checkpoint: the params by name and the updater's state by param and slot after ``step`` steps.

    ``meta`` is the metadata that the caller of :func:`write_checkpoint` gave; ``loop`` is the state of the training
    loop, nested dicts of plain values and arrays, empty in checkpoints of earlier versions.
    """

    step: int
    params: Arrays
    state: dict[str, Arrays]
    meta: dict[str, Any]
    loop: Mapping[str, Any] = {}


def write_checkpoint(
    root: str | os.PathLike[str],
    step: int,
    params: Mapping[str, np.ndarray],
    state: Mapping[str, Mapping[str, np.ndarray]],
    meta: Mapping[str, Any],
    loop: Mapping[str, Any] | None = None,
) -> Path:
    """Write the checkpoint ``<root>/step<step>`` and return its path.

    An existing checkpoint of that step is renamed just before the new one takes its name, and removed afterwards; a
    process killed between the two renames leaves no checkpoint of that step. ``meta`` must be JSON data, ``loop``
    nested dicts of JSON data and arrays. Raises RunError, and leaves no files, if the disk cannot be written.
    """
    final = Path(root) / f"step{step}"
    partial, replaced = final.with_name(f".step{step}.partial"), _replaced(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(final.parent)
        partial.mkdir()
        _write_files(partial, step, params, state, meta, loop or {})
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
    steps = _complete(Path(root))
    return steps[max(steps)] if steps else None


def remove_old_checkpoints(root: str | os.PathLike[str], keep: int) -> None:
    """Remove all complete checkpoints under ``root`` but the ``keep`` of the highest steps; 0 keeps all of them.

    A checkpoint is renamed before it is removed, so that a process killed meanwhile leaves no damaged one under its
    name; the next :func:`write_checkpoint` removes what is left. Raises RunError where one cannot be renamed.
    """
    if not keep:
        return
    steps = _complete(Path(root))
    for step in sorted(steps)[:-keep]:
        replaced = _replaced(steps[step])
        shutil.rmtree(replaced, ignore_errors=True)
        try:
            steps[step].rename(replaced)
        except OSError as error:
            raise RunError(f"the checkpoint {steps[step]} cannot be removed: {error}") from error
        shutil.rmtree(replaced, ignore_errors=True)


def _complete(root: Path) -> dict[int, Path]:
    """Return the complete checkpoints under ``root`` by step."""
    return {
        int(match[1]): path
        for path in root.glob("step*")
        if (match := re.fullmatch(r"step(\d+)", path.name)) and is_checkpoint(path)
    }


def _replaced(path: Path) -> Path:
    """Return the name that a checkpoint has while it is removed."""
    return path.with_name(f".{path.name}.replaced")


def is_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is a directory with all files of a checkpoint."""
    return all((path / name).is_file() for name in (PARAMS, STATE, METADATA))


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read the checkpoint directory ``path``, bit for bit as it was written.

    Raises UserError, naming the file, if one is missing, damaged, or of a format newer than this version of dsinga.
    """
    path = Path(path)
    metadata, fingerprints = _read_metadata(path)
    state: dict[str, Arrays] = {}
    for name, array in read_safetensors(path / STATE, fingerprints[STATE]).items():
        param, _, slot = name.rpartition("/")
        state.setdefault(param, {})[slot] = array
    params = read_safetensors(path / PARAMS, fingerprints[PARAMS])
    arrays = read_safetensors(path / LOOP, fingerprints[LOOP]) if LOOP in fingerprints else {}
    try:
        loop = insert_arrays(metadata.get("loop", {}), arrays)
    except (AttributeError, KeyError) as error:
        raise UserError(f"{path / METADATA} is damaged: {error!r}; use another checkpoint") from error
    return Checkpoint(metadata["step"], params, state, metadata["meta"], loop)


def read_checkpoint_params(path: Path) -> Arrays:
    """Read only the params of the checkpoint directory ``path``; raises UserError as :func:`read_checkpoint` does."""
    return read_safetensors(path / PARAMS, _read_metadata(path)[1][PARAMS])


def _write_files(
    folder: Path,
    step: int,
    params: Mapping[str, np.ndarray],
    state: Mapping[str, Mapping[str, np.ndarray]],
    meta: Mapping[str, Any],
    loop: Mapping[str, Any],
) -> None:
    flat = {f"{param}/{slot}": array for param, slots in state.items() for slot, array in slots.items()}
    loop_data, loop_arrays = separate_arrays(loop)
    files = {PARAMS: params, STATE: flat, **({LOOP: loop_arrays} if loop_arrays else {})}
    metadata = {
        "format": FORMAT,
        "step": step,
        "params": {name: list(array.shape) for name, array in params.items()},
        "state": {name: list(array.shape) for name, array in flat.items()},
        "loop": loop_data,
        "files": {name: write_tensors(folder / name, arrays)._asdict() for name, arrays in files.items()},
        "meta": dict(meta),
    }
    with open(folder / METADATA, "w", encoding="utf-8") as file:
        json.dump(metadata, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def _read_metadata(path: Path) -> tuple[dict[str, Any], dict[str, Fingerprint]]:
    """Return the contents of ``checkpoint.json``, and the fingerprints of the other files."""
    file = path / METADATA
    try:
        metadata = json.loads(file.read_text(encoding="utf-8"))
        if metadata["format"] > FORMAT:
            raise UserError(f"{file} has format {metadata['format']}, newer than this dsinga can read; upgrade dsinga")
        if not isinstance(metadata["step"], int) or not isinstance(metadata["meta"], dict):
            raise ValueError("step and meta are not a number and an object")
        return metadata, {name: Fingerprint(**metadata["files"][name]) for name in (PARAMS, STATE, *metadata["files"])}
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path} is not a checkpoint: it has no {METADATA}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged: {error!r}; use another checkpoint") from error


def _remove_leftovers(root: Path) -> None:
    """Remove the partial checkpoints that a killed run has left."""
    for pattern in (".step*.partial", ".step*.replaced"):
        for leftover in root.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Flush the entries of a directory to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
