"""Params of one net for another: what a job's ``checkpoint_path`` means, and reading and writing params alone."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from dsinga.checkpoint.directory import Checkpoint, is_checkpoint, latest, read_checkpoint_params
from dsinga.checkpoint.tensors import Arrays, read_npz, read_safetensors, write_tensors
from dsinga.errors import RunError, UserError

_log = logging.getLogger(__name__)

Place = str | os.PathLike[str]


def port(
    shapes: Mapping[str, tuple[int, ...]],
    paths: Sequence[Place],
    roots: Sequence[Place] = (),
    report: Callable[[str], None] = _log.warning,
    without: Collection[str] = (),
) -> Arrays:
    """Return the params among ``shapes`` that the checkpoints in ``paths`` have, by name; later paths win.

    The names in a checkpoint that the net does not have are left out, and ``report`` is told of them in a sentence;
    those in ``without``, which are to begin anew, are left out as well. Paths are those of :func:`find`. Raises
    UserError, naming param, both shapes and the file, if shapes differ.
    """
    values: Arrays = {}
    for path in paths:
        place = find(path, roots)
        found = _read(place)
        for name in (name for name in shapes if name in found and name not in without):
            if found[name].shape != tuple(shapes[name]):
                raise UserError(
                    f"param {name!r} has the shape {tuple(shapes[name])} in this net, but {found[name].shape} in "
                    f"{place}: give it another name to start it afresh, or change the layer"
                )
            values[name] = np.ascontiguousarray(found[name], np.float32)
        strangers = sorted(found.keys() - shapes.keys())
        if strangers:
            report(f"the net has no params {', '.join(strangers)} of {place}: they are left out")
    return values


def read_params(path: Place, roots: Sequence[Place] = ()) -> Arrays:
    """Return all params by name of anything that :func:`find` finds; raise UserError if it cannot be read."""
    return _read(find(path, roots))


def export_safetensors(checkpoint: Checkpoint, path: Place) -> None:
    """Write the params alone to the safetensors file ``path``, replacing it; raise RunError if that cannot be done."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        write_tensors(partial, checkpoint.params)
        partial.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def find(path: Place, roots: Sequence[Place] = ()) -> Path:
    """Return the checkpoint directory or file that ``path`` means, seen from the working directory, then ``roots``.

    It may be a checkpoint directory, a folder of them or a workspace (the latest is taken), a ``.safetensors`` or
    ``.npz`` file, or a checkpoint of SINGA. SINGA's name ``step<N>-worker<id>`` also finds the directory ``step<N>``
    in the same folder, so that jobs which go on from each other's checkpoints need not be changed.

    Raises UserError, saying where it looked, if there is none.
    """
    places = [Path(path).expanduser(), *(Path(root) / path for root in roots)]
    for place in places:
        for candidate in (place, _modern(place)):
            if candidate.is_file() or is_checkpoint(candidate):
                return candidate
            if newest := latest(candidate) or latest(candidate / "checkpoint"):
                return newest
    looked = ", ".join(dict.fromkeys(str(place.absolute()) for place in places))
    raise UserError(f"there is no checkpoint {str(path)!r} (looked for {looked})")


def _modern(place: Path) -> Path:
    """Return ``step<N>`` for SINGA's ``step<N>-worker<id>``."""
    match = re.fullmatch(r"(step\d+)-worker\d+(\.bin)?", place.name)
    return place.with_name(match[1]) if match else place


def _read(place: Path) -> Arrays:
    if place.is_dir():
        return read_checkpoint_params(place)
    readers: dict[str, Callable[[Path], Arrays]] = {".safetensors": read_safetensors, ".npz": read_npz}
    if place.suffix in readers:
        return readers[place.suffix](place)
    from dsinga.checkpoint.singa import read_singa  # the only reader that needs protobuf

    return read_singa(place)
