"""Finds checkpoints by path, loads their params into nets, and exports params."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.arrays import NamedParams, ParamArrays, refuse_nan
from dsinga.base.durable_files import draft_folder, read_saved_file, sync_folder
from dsinga.base.errors import RunError, UserError
from dsinga.base.redaction import redact
from dsinga.checkpoint.directory import Checkpoint, is_checkpoint, latest, read_checkpoint_params
from dsinga.checkpoint.remote import RemoteFolder, fetch_checkpoint
from dsinga.checkpoint.tensor_files import find_integers, read_npz, read_safetensors, write_tensors
from dsinga.data.locations import is_url
from dsinga.net import Param

_log = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]


def port(
    shapes: Mapping[str, tuple[int, ...]],
    paths: Sequence[PathLike],
    roots: Sequence[PathLike] = (),
    report: Callable[[str], None] = _log.warning,
    without: Collection[str] = (),
) -> ParamArrays:
    """Load a net's params from checkpoints of other nets; later ones override earlier ones.

    ``shapes`` are the net's. Unknown params are ignored; ``report`` receives a text that names them. Params in
    ``without`` keep their initial values. Raises UserError if shapes differ.
    """
    values: ParamArrays = {}
    for path in paths:
        location, params = _load(path, roots)
        for name in (name for name in shapes if name in params and name not in without):
            if params[name].shape != tuple(shapes[name]):
                raise UserError(
                    f"param {name!r} has the shape {tuple(shapes[name])} in this net, but {params[name].shape} in "
                    f"{location}: give it another name to start it afresh, or change the layer"
                )
            with np.errstate(over="ignore"):
                values[name] = np.ascontiguousarray(params[name], np.float32)
            finite = np.isfinite(values[name])
            if not finite.all():
                index = tuple(int(position) for position in np.argwhere(~finite)[0])
                raise UserError(
                    f"param {name!r} has {values[name][index]} at index {index} in {location}: training cannot begin "
                    "from it; take an earlier checkpoint, or leave this one out"
                )
        unknown = sorted(params.keys() - shapes.keys())
        if unknown:
            report(f"the net has no params {', '.join(unknown)} of {location}: they are left out")
    return values


def port_to_net(
    net_params: Mapping[str, Param], paths: Sequence[PathLike], roots: Sequence[PathLike] = ()
) -> ParamArrays:
    """Load a net's params from checkpoints, without states that belong to another run's rows."""
    if not paths or not net_params:
        return {}
    shapes = {name: param.shape for name, param in net_params.items()}
    return port(shapes, paths, roots, without=[name for name, param in net_params.items() if param.spec.by_rows])


def read_params(path: PathLike, roots: Sequence[PathLike] = ()) -> ParamArrays:
    """Read all params of a checkpoint, by name; raise UserError for damage or NaN."""
    location, params = _load(path, roots)
    refuse_nan(params, location)
    return params


def read_all_params(paths: Sequence[PathLike], roots: Sequence[PathLike] = ()) -> ParamArrays:
    """Read the params of several checkpoints, by name; later ones override earlier ones."""
    return {name: array for path in paths for name, array in read_params(path, roots).items()}


def params_of(params: Any, roots: Sequence[PathLike] = ()) -> ParamArrays:
    """Return params by name, given as arrays or as the path of a checkpoint."""
    if isinstance(params, (str, os.PathLike)):
        return read_params(params, roots)
    if not isinstance(params, Mapping):
        raise UserError(f"params must be arrays by name or the path of a checkpoint, not {type(params).__name__}")
    arrays = {}
    for name, value in params.items():
        if not isinstance(name, str):
            raise UserError(f"params must be arrays by name, but the name {name!r} is no str")
        try:
            arrays[name] = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"the param {name!r} is no array of numbers: {error}") from None
        if arrays[name].dtype.kind in "OSUMm":
            raise UserError(f"the param {name!r} is no array of numbers, but {type(value).__name__}")
    refuse_nan(arrays)
    return NamedParams(arrays, getattr(params, "names", {}))


def export_safetensors(checkpoint: Checkpoint, path: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Write a checkpoint's params to a safetensors file, which other libraries read; replace an older one.

    ``metadata`` are texts in the file's header. Raises RunError on failure.
    """
    path = Path(path)
    try:
        with draft_folder(path) as draft:
            write_tensors(draft / path.name, checkpoint.params, metadata)
            os.replace(draft / path.name, path)
            sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from error


def find(path: PathLike, roots: Sequence[PathLike] = ()) -> Path:
    """Find a checkpoint: look up ``path`` in the working directory, then in ``roots``.

    ``path`` may be a checkpoint directory, a folder of them or a workspace (for the latest), a ``.safetensors`` or
    ``.npz`` file, or a SINGA checkpoint. SINGA's name ``step<N>-worker<id>`` also finds the directory ``step<N>``.

    Raises UserError, with the searched paths, if there is no checkpoint.
    """
    locations = [Path(path).expanduser(), *(Path(root) / path for root in roots)]
    for location in locations:
        for candidate in (location, _without_worker(location)):
            if (candidate.exists() and not candidate.is_dir()) or is_checkpoint(candidate):  # reading refuses a pipe
                return candidate
            if newest := latest(candidate) or latest(candidate / "checkpoint"):
                return newest
    listing = ", ".join(dict.fromkeys(str(location.absolute()) for location in locations))
    raise UserError(f"there is no checkpoint {str(path)!r} (looked for {listing})")


def _without_worker(path: Path) -> Path:
    match = re.fullmatch(r"(step\d+)-worker\d+(\.bin)?", path.name)
    return path.with_name(match[1]) if match else path


def _load(path: PathLike, roots: Sequence[PathLike]) -> tuple[str, ParamArrays]:
    if not is_url(os.fspath(path)):
        location = find(path, roots)
        return str(location), read_saved_file(location, _read)
    folder = RemoteFolder(os.fspath(path))
    try:
        return redact(folder.url), _read(fetch_checkpoint(folder))
    except UserError as error:
        folder.name_url(error)
        raise


def _read(path: Path) -> ParamArrays:
    if path.is_dir():
        return read_checkpoint_params(path)
    readers: dict[str, Callable[[Path], ParamArrays]] = {".safetensors": read_safetensors, ".npz": read_npz}
    if path.suffix in readers:
        params = readers[path.suffix](path)
        if fault := find_integers(params):
            raise UserError(f"{path}: {fault}; write it as float32")
        return params
    from dsinga.checkpoint.singa import read_singa  # imported here, since only this reader needs protobuf

    return read_singa(path)
