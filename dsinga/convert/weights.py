"""Weights in Hugging Face's folder form: config.json beside model.safetensors, or its shards with an index."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.durable_files import explained_writing, finish_save, local_folder, replaced_files, write_file
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.base.regular_files import read_json
from dsinga.base.tensor_files import read_safetensors, write_tensors
from dsinga.convert.torch_names import names_of, take_arrays, to_torch
from dsinga.nn.model.model_params import ModelParams

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
Names = Mapping[str, str | None]


@public
def load_weights(
    model: ModelParams, folder: str | os.PathLike[str], names: Names | None = None, without: str | Sequence[str] = ()
) -> None:
    """Set the params of a model to the weights in a folder, by PyTorch's names of the model's params.

    The params of a layer "conv1" are called "conv1.weight" and "conv1.bias", those of a batch normalisation also
    "bn1.running_mean" and "bn1.running_var"; shapes are PyTorch's. Nothing is unpickled.

    Args:
        model: a model with known shapes, as of :func:`from_torch` or ``nn.Model``.
        folder: with ``model.safetensors``, or ``model.safetensors.index.json`` and the files that it names; or the path
            of such a file.
        names: what names in the folder are in the model, where they differ, each with any number of ``*``, as
            ``{"bert.encoder.layer.*.output.dense.*": "encoder.*.linear2.*"}``; None for arrays that are left out. The
            first that fits counts.
        without: a pattern of PyTorch's names of params that keep their values, as ``"classifier.*"``, or several.

    Raises UserError, naming all of them, for params that the folder lacks, and for arrays that the model lacks, other
    than single numbers and integers; for other shapes, and for a file that is damaged or pickled.
    """
    path, without = Path(folder), [without] if isinstance(without, str) else without
    if not isinstance(names or {}, Mapping):
        raise UserError(f"names= is a dict from names in the folder to those of the model, not {value_text(names)}")
    for pattern in without:
        if not any(fnmatch.fnmatchcase(param.name, pattern) for param in names_of(model)):
            raise UserError(f"without= has {pattern!r}, but no param of the model is called so; see to_torch(model)")
    arrays = renamed(read_weights(path), names or {})
    kept = {param.own for param in names_of(model) if any(fnmatch.fnmatchcase(param.name, each) for each in without)}
    table = [param for param in names_of(model) if param.own not in kept]
    known = {param.name for param in names_of(model)}
    unknown = [name for name, array in arrays.items() if name not in known and array.ndim and array.dtype.kind == "f"]
    for prefix in ("_orig_mod.", "module."):  # of torch.compile, DataParallel and DistributedDataParallel
        if unknown and all(name.startswith(prefix) and name.removeprefix(prefix) in known for name in unknown):
            raise UserError(
                f"the names in {path} begin with {prefix!r}, of the wrapper of a net; give load_weights "
                f'names={{"{prefix}*": "*"}}'
            )
    if unknown:
        raise UserError(
            f"the model has no {', '.join(unknown)} of {path}; give load_weights their names in the model, or None, as "
            f"in names={{{unknown[0]!r}: None}}"
        )
    model.params = {**model.params, **take_arrays(table, arrays, f"{path}")}


@public
def save_weights(
    model: ModelParams,
    folder: str | os.PathLike[str],
    names: Names | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write the params of a model to ``model.safetensors`` in a folder, by PyTorch's names and in its shapes.

    ``names`` is the table of :func:`load_weights`, here from right to left; ``config`` is written to ``config.json``.
    Raises UserError where the folder cannot be written.
    """
    path = local_folder(folder)
    back = {own: theirs for theirs, own in (names or {}).items() if own is not None}
    arrays = renamed(to_torch(model), back)
    replaced = (WEIGHTS, INDEX) if config is None else (WEIGHTS, INDEX, CONFIG)  # an index would name older files
    with explained_writing(path), replaced_files(path, replaced) as files:
        write_tensors(files / WEIGHTS, arrays, {"format": "pt"})
        if config is not None:
            write_file(files / CONFIG, json.dumps(config, indent=2) + "\n")


def read_weights(path: Path) -> ParamArrays:
    """Return the arrays of a folder, or of a safetensors file, by name. Raises UserError if they cannot be read."""
    finish_save(path.parent if path.is_file() else path)
    if path.is_file():
        return read_safetensors(path)
    if (path / INDEX).is_file():
        return _read_shards(path)
    if (path / WEIGHTS).is_file():
        return read_safetensors(path / WEIGHTS)
    pickled = next(
        (name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (path / name).exists()), ""
    )
    remedy = f"{pickled} would run code; save the net with safe_serialization=True" if pickled else "give its folder"
    raise UserError(f"{path} has neither {WEIGHTS} nor {INDEX}: {remedy}")


def _read_shards(path: Path) -> ParamArrays:
    """Return the arrays that an index lists, each from the file that it names."""
    try:
        files = read_json(path / INDEX)["weight_map"]
        shards = dict.fromkeys(files.values())
        if wrong := [name for name in shards if not isinstance(name, str) or Path(name).name != name]:
            raise ValueError(f"it names {wrong[0]!r}, which is no file of the folder")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path / INDEX} cannot be read as an index of weights: {error}") from None
    read = {shard: read_safetensors(path / shard) for shard in shards}
    if missing := [f"{name} in {shard}" for name, shard in files.items() if name not in read[shard]]:
        raise UserError(f"{path} lacks {', '.join(missing)}, which its index names; copy its files anew")
    return {name: read[shard][name] for name, shard in files.items()}


def renamed(arrays: Mapping[str, np.ndarray], names: Names) -> ParamArrays:
    """Return arrays by the names that a table of patterns gives them. Raises UserError for two of one name."""
    result: ParamArrays = {}
    for name, array in arrays.items():
        new = new_name(name, names)
        if new is None:
            continue
        if new in result:
            raise UserError(f"names= gives two arrays the name {new!r}, one of them {name!r}; make its patterns differ")
        result[new] = array
    return result


def new_name(name: str, names: Names) -> str | None:
    """Return what the first pattern that fits makes of a name, None to leave it out; without one, the name itself."""
    for pattern, new in names.items():
        stars = re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), name)
        if stars is None:
            continue
        if new is not None and new.count("*") != pattern.count("*"):
            raise UserError(f"names= has {pattern!r}: {new!r}; give both as many *")
        filled = new
        for part in stars.groups():
            filled = filled and filled.replace("*", part, 1)
        return filled
    return name
