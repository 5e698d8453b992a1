"""Computes the initial values of params, by SINGA's methods or a user's, and checks given values."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import listed, register
from dsinga.job import ParamGenConf
from dsinga.job.component import Configured, error_note, resolve
from dsinga.layers.interface.layer import Shape
from dsinga.net import NeuralNet, Param


class Initialiser(Configured, ABC):
    """Base class of initialisers with settings, which a subclass declares as ``Conf``.

    The settings are fields of the message ``init { }``, next to ``user_type``. An initialiser without settings is a
    function. Draw random numbers from ``rng``: it depends on the job's seed and the param's name.

    >>> import numpy as np
    >>> import dsinga
    >>> @dsinga.register("initialiser", "Orthonormal")  # nn.Dense(8, kernel_initializer="Orthonormal")
    ... def orthonormal(shape, conf, rng):
    ...     q, _ = np.linalg.qr(rng.normal(size=(max(shape), min(shape))))
    ...     return q if shape[0] >= shape[1] else q.T
    """

    conf: ParamGenConf

    @abstractmethod
    def __call__(self, shape: Shape, rng: np.random.Generator) -> Any:
        """Return the initial values of a param of ``shape``, drawn from ``rng``."""


def initial_values(params: Mapping[str, Param], seed: int) -> dict[str, np.ndarray]:
    """Return the initial values of params, float32, which depend on (seed, name, shape, init) only."""
    values = {}
    for name, param in params.items():
        if param.conf.init is None:
            values[name] = np.full(param.shape, param.spec.initial, np.float32)
        else:
            with error_note(f"in the initialiser of param {name!r}"):
                values[name] = initialise(param.shape, param.conf.init, param_rng(seed, name), name)
    return values


def param_rng(seed: int, name: str) -> np.random.Generator:
    """Return the random generator for a param's initial values, from the job's seed and the param's name."""
    name_key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    key = np.array(
        [seed & 0xFFFF_FFFF_FFFF_FFFF, name_key], np.uint64
    )  # without the dtype, such large integers would become float64
    return np.random.Generator(np.random.Philox(key=key))


def initialise(shape: Shape, conf: ParamGenConf, rng: np.random.Generator, param: str = "") -> np.ndarray:
    """Return the initial values of a param of ``shape``, float32; errors name ``param``."""
    entry = resolve(conf)
    filled = entry(conf)(shape, rng) if isinstance(entry, type) else entry(shape, conf, rng)
    name = f"initialiser {conf.user_type!r}" + (f" of param {param!r}" if param else "")
    if not isinstance(filled, (np.ndarray, np.number, list, tuple, float, int)):
        raise conf.error(f"{name} must return an array of shape {shape}, not {filled!r}", "user_type")
    if np.shape(filled) != tuple(shape):
        raise conf.error(f"{name} returned the shape {np.shape(filled)}, not {shape}", "user_type")
    values = np.array(filled, np.float32, order="C")
    if conf.user_type and not np.isfinite(values).all():
        raise conf.error(f"{name} returned numbers that are not finite", "user_type")
    return values


def rows_columns(shape: Shape, conf: ParamGenConf) -> tuple[int, int]:
    """Return the shape of a param as a matrix: its first axis, and the product of the others."""
    if len(shape) < 2:
        raise conf.error(f"{conf.type.name} fills params with rows and columns, not one of shape {shape}", "type")
    return shape[0], math.prod(shape[1:])


def scaled(values: np.ndarray, conf: ParamGenConf, factor: float = 1.0) -> np.ndarray:
    """Multiply random numbers in place by ``conf.value`` and ``factor``."""
    if conf.value * factor != 1.0:
        values *= np.float32(conf.value * factor)
    return values


@register("initialiser", kConstant=0, kConst=0)
def constant(shape: Shape, conf: ParamGenConf, rng: np.random.Generator) -> np.ndarray:
    """Give a param the constant ``value`` as initial value."""
    return np.full(shape, conf.value, np.float32)


@register("initialiser", kGaussian=1)
def gaussian(shape: Shape, conf: ParamGenConf, rng: np.random.Generator, factor: float = 1.0) -> np.ndarray:
    """Draw normal initial values: value·N(mean, std²)."""
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(conf.std)
    values += np.float32(conf.mean)
    return scaled(values, conf, factor)


@register("initialiser", kUniform=2)
def uniform(shape: Shape, conf: ParamGenConf, rng: np.random.Generator, factor: float = 1.0) -> np.ndarray:
    """Draw uniform initial values: value·U[low, high)."""
    if conf.high < conf.low:
        raise conf.error(f"high {conf.high} is less than low {conf.low}", "high")
    values = rng.random(shape, dtype=np.float32)
    values *= np.float32(conf.high - conf.low)
    values += np.float32(conf.low)
    return scaled(values, conf, factor)


@register("initialiser", kGaussianSqrtFanIn=4)
def gaussian_sqrt_fan_in(shape: Shape, conf: ParamGenConf, rng: np.random.Generator) -> np.ndarray:
    """Draw normal initial values, scaled by the inputs: value·N(mean, std²) / √columns."""
    return gaussian(shape, conf, rng, rows_columns(shape, conf)[1] ** -0.5)


@register("initialiser", kUniformSqrtFanIn=5)
def uniform_sqrt_fan_in(shape: Shape, conf: ParamGenConf, rng: np.random.Generator) -> np.ndarray:
    """Draw uniform initial values, scaled by the inputs: value·U[low, high)·√(3 / columns).

    U[-1, 1) gives the variance 1 / columns. This is the factor in SINGA's source; its Param page lacks the √3: ``value:
    0.57735027`` gives these numbers.
    """
    return uniform(shape, conf, rng, (3.0 / rows_columns(shape, conf)[1]) ** 0.5)


@register("initialiser", kUniformSqrtFanInOut=6)
def uniform_sqrt_fan_in_out(shape: Shape, conf: ParamGenConf, rng: np.random.Generator) -> np.ndarray:
    """Draw uniform initial values as SINGA's source does: value·U[low, high) / √(rows + columns)."""
    return uniform(shape, conf, rng, sum(rows_columns(shape, conf)) ** -0.5)


@register("initialiser", kUniformFanInOut=7)
def uniform_fan_in_out(shape: Shape, conf: ParamGenConf, rng: np.random.Generator) -> np.ndarray:
    """Draw uniform initial values as SINGA's Param page says: value·U[low, high)·√(6 / (rows + columns))."""
    return uniform(shape, conf, rng, (6.0 / sum(rows_columns(shape, conf))) ** 0.5)


def check_start(known: Collection[str], params: Mapping[str, Any]) -> None:
    """Raise UserError if the params to start from have no name in common with the net's."""
    if params and known and not any(name in known for name in params):
        raise UserError(f"none of the given params ({listed(params)}) is a param of the net, which has {listed(known)}")


def check_params(net: NeuralNet, params: Mapping[str, Any]) -> None:
    """Raise UserError if params, such as a checkpoint's, do not fit a net's names and shapes."""
    for name, param in net.params.items():
        if param.spec.by_rows:
            continue
        if name not in params:
            raise UserError(f"the net has a param {name!r} of shape {param.shape}, which the given params lack")
        if tuple(params[name].shape) != param.shape:
            raise UserError(
                f"the net has a param {name!r} of shape {param.shape}, but the given one has {params[name].shape}; "
                "use the job that the params were trained with, and data of the same shape"
            )
