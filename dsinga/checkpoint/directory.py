"""Writes and reads checkpoint directories, from which training resumes with the same bits.

``<root>/step<N>/`` has these files:

- ``params.safetensors``: params by name.
- ``state.safetensors``: the updater's state as "param/slot".
- ``checkpoint.json``: step, names and shapes, the training loop's state, fingerprints of the other files, and the
  caller's metadata (seed, job, topology).
- ``loop.safetensors``: arrays of the loop's state, if any.

A checkpoint is complete or absent: its directory has a temporary name until it is flushed and replaces an older one in
one step. Only one process may write to a root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.arrays import EMA_SLOT, NamedParams, ParamArrays, averaged, first_not_finite
from dsinga.base.durable_files import draft_folder, replace_folder, sync_folder
from dsinga.base.errors import RunError, UserError
from dsinga.checkpoint.metadata import (
    LOOP,
    METADATA,
    PARAMS,
    STATE,
    STEP,
    DamagedFile,
    check_file,
    read_metadata,
    write_metadata,
)
from dsinga.checkpoint.tensor_files import (
    Fingerprint,
    find_integers,
    insert_arrays,
    read_safetensors,
    separate_arrays,
    write_tensors,
)

DRAFTS = "step"  # names the drafts of the checkpoints of all steps


class Checkpoint(NamedTuple):
    """A checkpoint: the params by name and the updater's state by param and slot after ``step`` steps.

    ``meta`` is the metadata given to :func:`write_checkpoint`. ``loop`` is the state of the training loop, nested dicts
    of plain values and arrays.
    """

    step: int
    params: ParamArrays
    state: dict[str, ParamArrays]
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
    """Write the checkpoint ``<root>/step<step>``, replacing an existing one, and return its path.

    ``meta`` must be JSON data, ``loop`` nested dicts of JSON data and arrays. Raises RunError, without leaving files,
    if the disk cannot be written.
    """
    final = Path(root) / f"step{step}"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with draft_folder(final.with_name(DRAFTS)) as draft:
            (partial := draft / final.name).mkdir()
            _write_files(partial, step, params, state, meta, loop or {})
            (replace_folder if final.exists() else os.rename)(partial, final)
            sync_folder(final.parent)
    except OSError as error:
        raise RunError(f"the checkpoint {final} cannot be written: {error}") from error
    return final


def latest(root: str | os.PathLike[str]) -> Path | None:
    """Return the path of the newest checkpoint under ``root``, perhaps damaged, or None."""
    return max(_step_folders(Path(root)), default=(0, None))[1]


def latest_finite(root: str | os.PathLike[str]) -> Path | None:
    """Return the path of the newest checkpoint under ``root`` that is undamaged and finite, or None."""
    for _, path in sorted(_step_folders(Path(root)), reverse=True):
        with contextlib.suppress(DamagedFile, UserError):  # UserError: of a later version
            checkpoint = _read(path)
            if not any(map(first_not_finite, (checkpoint.params, *checkpoint.state.values()))):
                return path
    return None


def latest_step(root: str | os.PathLike[str]) -> int:
    """Return the step of the newest complete checkpoint in ``root``, or -1."""
    return max(_complete(Path(root)), default=-1)


def remove_old_checkpoints(root: str | os.PathLike[str], keep: int) -> None:
    """Remove all checkpoints under ``root`` but the newest ``keep``; 0 keeps all.

    Each is renamed first, so that a killed process leaves no damaged one.
    """
    if not keep:
        return
    steps = _complete(Path(root))
    for step in sorted(steps)[:-keep]:
        try:
            with draft_folder(steps[step].with_name(DRAFTS)) as draft:
                steps[step].rename(draft / "removed")
        except OSError as error:
            raise RunError(f"the checkpoint {steps[step]} cannot be removed: {error}") from error


def _complete(root: Path) -> dict[int, Path]:
    names = (PARAMS, STATE, METADATA)
    return {step: path for step, path in _step_folders(root) if all((path / name).is_file() for name in names)}


def _step_folders(root: Path) -> list[tuple[int, Path]]:
    """Return the step and path of each folder under ``root`` that is named like a checkpoint."""
    try:
        paths = [(STEP.fullmatch(path.name), path) for path in root.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:  # such as a name that is too long
        raise UserError(f"the folder {root} cannot be read: {error.strerror or error}; name another one") from None
    return [(int(match[1]), path) for match, path in paths if match]


def is_checkpoint(path: Path) -> bool:
    """Whether ``path`` is a checkpoint's directory, perhaps a damaged one."""
    return os.path.isdir(path) and (STEP.fullmatch(path.name) is not None or (path / METADATA).is_file())


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint: params, the updater's state, and the loop's state, bit for bit.

    Raises UserError, naming the file and an earlier checkpoint, if a file is missing, damaged, or of a newer format.
    """
    path = Path(path)
    try:
        return _read(path)
    except DamagedFile as error:
        raise UserError(f"{error}; {_another(path)}") from None


def read_checkpoint_params(path: Path) -> ParamArrays:
    """Return the params of a checkpoint, for predictions: their averages if it has them."""
    try:
        metadata = read_metadata(path)
        params = _read_arrays(path / PARAMS, metadata.files[PARAMS])
        if not any(name.endswith(f"/{EMA_SLOT}") for name in metadata.state):
            return params
        averages = averaged(params, arrays_by_param(_read_arrays(path / STATE, metadata.files[STATE])))
        return NamedParams(averages, params.names)
    except DamagedFile as error:
        raise UserError(f"{error}; {_another(path)}") from None


def read_newest_checkpoint(root: str | os.PathLike[str]) -> tuple[Path, Checkpoint, list[str]] | None:
    """Read the newest undamaged checkpoint under ``root``: return its path and contents, or None.

    The third value names damaged checkpoints of later steps. Raises UserError if all are damaged, or one has a newer
    format.
    """
    faults: list[str] = []
    for _, path in sorted(_step_folders(Path(root)), reverse=True):
        try:
            return path, _read(path), faults
        except DamagedFile as error:
            faults.append(str(error))
    if not faults:
        return None
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise UserError(f"no checkpoint in {root} is intact: {faults[0]}{more}; move that folder away to begin anew")


def _read(path: Path) -> Checkpoint:
    metadata = read_metadata(path)
    arrays = {name: _read_arrays(path / name, expected) for name, expected in metadata.files.items()}
    state = arrays_by_param(arrays[STATE])
    try:
        loop = insert_arrays(metadata.loop, arrays.get(LOOP, {}))
    except (AttributeError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path / METADATA} is damaged: {error!r} in loop") from None
    return Checkpoint(metadata.step, arrays[PARAMS], state, metadata.meta, loop)


def arrays_by_param(arrays: ParamArrays) -> dict[str, ParamArrays]:
    """Return an optimizer's state by param and slot, of arrays named "param/slot"."""
    state: dict[str, ParamArrays] = {}
    for name, array in arrays.items():
        param, _, slot = name.rpartition("/")
        state.setdefault(param, {})[slot] = array
    return state


def _read_arrays(file: Path, expected: Fingerprint) -> NamedParams:
    check_file(file, expected)
    arrays = read_safetensors(file)
    if file.name == PARAMS and (fault := find_integers(arrays)):
        raise DamagedFile(f"{file} is damaged: {fault}")
    return arrays


def _another(path: Path) -> str:
    match = STEP.fullmatch(path.name)
    earlier = [pair for pair in _complete(path.parent).items() if match and pair[0] < int(match[1])]
    return f"the checkpoint before it is {max(earlier)[1]}" if earlier else "there is no earlier checkpoint beside it"


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
    fields = {
        "step": step,
        "params": {name: list(array.shape) for name, array in params.items()},
        "state": {name: list(array.shape) for name, array in flat.items()},
        "loop": loop_data,
        "files": {name: write_tensors(folder / name, arrays)._asdict() for name, arrays in files.items()},
        "meta": dict(meta),
    }
    write_metadata(folder, fields)
    sync_folder(folder)
