"""Which param of a model PyTorch has under which name and in which shape, for copying in both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.nn.model.model_params import ModelParams

# The attributes of PyTorch's modules by the roles of params that are called otherwise.
ATTRIBUTES = {"scale": "weight", "slope": "weight", "mean": "running_mean", "variance": "running_var", "vector": ""}
CONSTANT = ".constant"  # the end of the names of params that PyTorch's module does not have
AS_IMAGE = ".image"  # the end of the name of the source of a convolution of sequences
PACKED = re.compile(r"(.*)in_proj_([qkv])\.(weight|bias)")  # of torch.nn.MultiheadAttention
STACKED = re.compile(r"(.*)\.stacked(\d+)")  # the layers of torch.nn.LSTM and its like, but the first one
# Of those the params in the order of ours, and which part of an array of torch.nn.GRU is that of a gate.
RECURRENT = {"hx": "weight_ih", "hh": "weight_hh", "b": "bias_ih", "hb": "bias_hh"}
GATES = "rzc"


class TorchParam(NamedTuple):
    """A param of a model as PyTorch has it.

    Attributes:
        name: PyTorch's name.
        own: the name in the model.
        own_shape: the shape in the model.
        shape: PyTorch's shape, of its part where PyTorch has several params in one array.
        part: the number of the part of PyTorch's array, which has three, None for all of it.
    """

    name: str
    own: str
    own_shape: tuple[int, ...]
    shape: tuple[int, ...]
    part: int | None = None


def names_of(model: ModelParams) -> list[TorchParam]:
    """Return the params of a model with known shapes as PyTorch has them; those that are shared under each name.

    Those of the projections of torch.nn.MultiheadAttention are there twice: by themselves, and as parts of its array.
    """
    found: dict[str, TorchParam] = {}
    for node in model.predicting_net().nodes:
        layer = node.layer
        confs = [*layer.conf.param, *[None] * len(layer.params)]
        named = {conf.name for conf in layer.conf.param if conf.name}
        for spec, own, conf in zip(layer.params, node.params, confs, strict=False):
            if conf and conf.name and conf.share_from:
                continue  # of a further call of a layer, not of a module of its own
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
    """Return the path of a recurrent layer, the name of one of its params, and its part, as PyTorch has them."""
    match = STACKED.fullmatch(layer)
    path, number = (match[1], match[2]) if match else (layer, "0")
    gate, _, kind = role.removeprefix("back_").rpartition("_")
    if kind not in RECURRENT:
        return layer, role, None
    reverse = "_reverse" if role.startswith("back_") else ""
    return path, f"{RECURRENT[kind]}_l{number}{reverse}", GATES.index(gate) if gate else None


def take_arrays(names: Sequence[TorchParam], arrays: Mapping[str, np.ndarray], where: str) -> ParamArrays:
    """Return the params of a model from PyTorch's arrays by name. Raises UserError for those that lack or differ."""
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
    """Return the params of a model by PyTorch's names and in its shapes, float32: a ``state_dict`` of numpy arrays.

    ``module.load_state_dict({name: torch.tensor(array) for name, array in to_torch(model).items()})`` puts them into
    the module that the model came from. Raises UserError where the shapes of records are not known.
    """
    params, arrays = model.params, dict[str, np.ndarray]()
    parts: dict[str, dict[int, np.ndarray]] = {}
    for param in names_of(model):
        array = params[param.own].reshape(param.shape)
        if param.part is None and not PACKED.fullmatch(param.name):
            arrays[param.name] = array
        elif param.part is not None:
            parts.setdefault(param.name, {})[param.part] = array
    return arrays | {name: np.concatenate([given[part] for part in range(3)]) for name, given in parts.items()}
