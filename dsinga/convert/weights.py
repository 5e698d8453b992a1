"""Reads and writes a model's weights by PyTorch's names, in folders like Hugging Face's."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.arrays import ParamArrays
from dsinga.base.durable_files import (
    current_file,
    explained_writing,
    local_folder,
    read_saved,
    read_saved_file,
    replaced_files,
    write_file,
)
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json
from dsinga.checkpoint.tensor_files import read_safetensors, write_tensors
from dsinga.nn.model.model_params import ModelParams
from dsinga.nn.writing.reshaping import AS_IMAGE

# Attributes of PyTorch's modules, by roles of params with other names.
ATTRIBUTES = {"scale": "weight", "slope": "weight", "mean": "running_mean", "variance": "running_var", "vector": ""}
CONSTANT = ".constant"  # the end of the names of params that PyTorch's module does not have
PACKED = re.compile(r"(.*)in_proj_([qkv])\.(weight|bias)")  # params of torch.nn.MultiheadAttention
STACKED = re.compile(r"(.*)\.stacked(\d+)")  # all layers but the first of torch.nn.LSTM, GRU and RNN
# PyTorch's recurrent params in dsinga's order, and the gates in the order of torch.nn.GRU's arrays.
RECURRENT = {"hx": "weight_ih", "hh": "weight_hh", "b": "bias_ih", "hb": "bias_hh"}
GATES = "rzc"


class TorchParam(NamedTuple):
    """A param's name and shape in a model and in PyTorch.

    Attributes:
        own_shape: the shape in the model.
        shape: PyTorch's shape, or its part's shape if PyTorch has several params in one array.
        part: the number of the part in PyTorch's array, which has three; None for the whole array.
    """

    name: str
    own: str
    own_shape: tuple[int, ...]
    shape: tuple[int, ...]
    part: int | None = None


def names_of(model: ModelParams) -> list[TorchParam]:
    """Return PyTorch's names and shapes of all params of a model; shared params under each name.

    Params of torch.nn.MultiheadAttention's projections are listed twice: separately, and as parts of its array.
    """
    found: dict[str, TorchParam] = {}
    for node in model.predicting_net().nodes:
        layer = node.layer
        confs = [*layer.conf.param, *[None] * len(layer.params)]
        named = {conf.name for conf in layer.conf.param if conf.name}
        for spec, own, conf in zip(layer.params, node.params, confs, strict=False):
            if conf and conf.name and conf.share_from:
                continue  # the layer is a further call of one module
            attribute = ATTRIBUTES.get(spec.role, spec.role)
            path, part = layer.name, None
            settings = layer.settings
            if hasattr(settings, "recurrent_bias") and (settings.recurrent_bias or not settings.bias_term):
                path, attribute, part = recurrent_name(path, spec.role)
            name = own if own in named else ".".join(filter(None, (path, attribute)))
            shape = getattr(layer, "kernels", spec.shape) if spec.role == "weight" else spec.shape
            if layer.conf.srclayers and layer.conf.srclayers[0] == f"{layer.name}{AS_IMAGE}" and len(shape) == 4:
                shape = (*shape[:2], shape[3])
            if own.endswith(CONSTANT):
                continue
            found[name if part is None else f"{name} {part}"] = TorchParam(name, own, spec.shape, shape, part)
            if match := PACKED.fullmatch(name):
                packed = f"{match[1]}in_proj_{match[3]}", own, spec.shape, shape, "qkv".index(match[2])
                found[f"{name} packed"] = TorchParam(*packed)
    return list(found.values())


def recurrent_name(layer: str, role: str) -> tuple[str, str, int | None]:
    """Return PyTorch's path of a recurrent layer, and the name and gate of one of its params."""
    match = STACKED.fullmatch(layer)
    path, number = (match[1], match[2]) if match else (layer, "0")
    gate, _, kind = role.removeprefix("back_").rpartition("_")
    if kind not in RECURRENT:
        return layer, role, None
    reverse = "_reverse" if role.startswith("back_") else ""
    return path, f"{RECURRENT[kind]}_l{number}{reverse}", GATES.index(gate) if gate else None


def take_arrays(names: Sequence[TorchParam], arrays: Mapping[str, np.ndarray], where: str) -> ParamArrays:
    """Return a model's params, given PyTorch's arrays by name."""
    params: ParamArrays = {}
    given = {param.own for param in names if param.name in arrays}
    first: dict[str, tuple[str, np.ndarray]] = {}  # the name and the value of each, which may have several names
    if missing := [param.name for param in names if param.own not in given]:
        raise UserError(f"{where} lacks {', '.join(missing)}, which the model needs")
    for param in names:
        if param.name not in arrays:
            continue
        array = arrays[param.name]
        expected = param.shape if param.part is None else (3 * param.shape[0], *param.shape[1:])
        if tuple(array.shape) != expected and not (array.ndim == 0 and expected == (1,)):
            raise UserError(
                f"{param.name} of {where} has the shape {tuple(array.shape)}, but that of the model is {expected}; "
                "give the model the layers, and the shape of records, that this net has"
            )
        array = array if param.part is None else np.split(array, 3)[param.part]
        value = np.ascontiguousarray(array, np.float32).reshape(param.own_shape)
        before, earlier = first.setdefault(param.own, (param.name, value))
        if not np.array_equal(earlier, value, equal_nan=True):
            raise UserError(
                f"{before} and {param.name} of {where} differ, but are one param of the model, {param.own}; "
                "save the net after they are tied, or leave one of them out"
            )
        params[param.own] = value
    return params


@public
def to_torch(model: ModelParams) -> dict[str, np.ndarray]:
    """Return a model's params as a ``state_dict`` of numpy arrays, float32, by PyTorch's names and shapes.

    This puts them into the original module:
    ``module.load_state_dict({name: torch.tensor(array) for name, array in to_torch(model).items()})``.

    Raises UserError if the shapes of records are not known.
    """
    if not hasattr(model, "params"):
        what = "a module of PyTorch" if hasattr(model, "state_dict") else f"{type(model).__name__}"
        raise UserError(
            f"to_torch requires a model of dsinga, not {what}; to make one write "
            "dsinga.convert.from_torch(module, shape)"
        )
    params, arrays = model.params, dict[str, np.ndarray]()
    parts: dict[str, dict[int, np.ndarray]] = {}
    for param in names_of(model):
        array = params[param.own].reshape(param.shape)
        if param.part is None and not PACKED.fullmatch(param.name):
            arrays[param.name] = array
        elif param.part is not None:
            parts.setdefault(param.name, {})[param.part] = array
    return arrays | {name: np.concatenate([given[part] for part in range(3)]) for name, given in parts.items()}


WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
Names = Mapping[str, str | None]


@public
def load_weights(
    model: ModelParams, folder: str | os.PathLike[str], names: Names | None = None, without: str | Sequence[str] = ()
) -> None:
    """Read weights that PyTorch's names identify from a folder into a model.

    A layer "conv1" has the params "conv1.weight" and "conv1.bias", a batch normalisation also "bn1.running_mean" and
    "bn1.running_var". Shapes are PyTorch's. Nothing is unpickled.

    Args:
        model: a model with known shapes, as from :func:`from_torch` or ``nn.Model``.
        folder: with ``model.safetensors``, or ``model.safetensors.index.json`` and its files; or the path of such a
            file.
        names: maps names in the folder to names in the model, where they differ, each with any number of ``*``:
            ``{"bert.encoder.layer.*.output.dense.*": "encoder.*.linear2.*"}``. None skips an array. The first matching
            pattern counts.
        without: pattern, or patterns, of PyTorch's names of params that keep their values, such as ``"classifier.*"``.

    Raises UserError with the names of all params that the folder lacks, and of all arrays that the model lacks (except
    single numbers and integers). Damaged and pickled files raise it, too.
    """
    path, without = local_folder(folder), [without] if isinstance(without, str) else without
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
    for prefix in ("_orig_mod.", "module."):  # prefixes by torch.compile, DataParallel and DistributedDataParallel
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
    """Write a model's params to ``model.safetensors`` in a folder, by PyTorch's names and shapes.

    ``names`` is the table of :func:`load_weights`, read from right to left; ``config`` is written to ``config.json``.
    Raises UserError if the folder cannot be written.
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
    """Read all arrays of a folder or safetensors file, by name."""
    if current_file(path).is_file():
        return read_saved_file(path, read_safetensors)
    return read_saved(path, (WEIGHTS, INDEX), lambda place: _read_folder(path, place))


def _read_folder(path: Path, place: Callable[[str], Path]) -> ParamArrays:
    if place(INDEX).is_file():
        return _read_shards(path, place)
    if place(WEIGHTS).is_file():
        return read_safetensors(place(WEIGHTS))
    pickled = next(
        (name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (path / name).exists()), ""
    )
    remedy = f"{pickled} would run code; save the net with safe_serialization=True" if pickled else "give its folder"
    raise UserError(f"{path} has neither {WEIGHTS} nor {INDEX}: {remedy}")


def _read_shards(path: Path, place: Callable[[str], Path]) -> ParamArrays:
    """Read the arrays that an index lists from their files."""
    try:
        files = read_json(place(INDEX))["weight_map"]
        shards = dict.fromkeys(files.values())
        if wrong := [name for name in shards if not isinstance(name, str) or Path(name).name != name]:
            raise ValueError(f"it names {wrong[0]!r}, which is no file of the folder")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path / INDEX} cannot be read as an index of weights: {error}") from None
    read = {shard: read_safetensors(place(shard)) for shard in shards}
    if missing := [f"{name} in {shard}" for name, shard in files.items() if name not in read[shard]]:
        raise UserError(f"{path} lacks {', '.join(missing)}, which its index names; copy its files anew")
    return {name: read[shard][name] for name, shard in files.items()}


def renamed(arrays: Mapping[str, np.ndarray], names: Names) -> ParamArrays:
    """Rename arrays by a table of patterns; raise UserError for duplicate names."""
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
    """Rename by the first matching pattern; None skips the array, and without a match the name stays."""
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
