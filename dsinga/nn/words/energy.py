"""Restricted Boltzmann machines, trained by contrastive divergence, and the dense layers that they initialise."""

from __future__ import annotations

from typing import Any, Unpack

from dsinga.base.arguments import with_types
from dsinga.base.errors import UserError
from dsinga.job import ParamConf
from dsinga.nn.words.basic_layers import Dense
from dsinga.nn.words.initialisers import RandomNormal
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerArguments, LayerBuilder, layer
from dsinga.nn.writing.writer import LayerWriter, Write

NORMAL = RandomNormal(stddev=0.1)


@layer
def RBM(
    units: int,
    gaussian: bool = False,
    gaussian_visible: bool = False,
    persistent: bool = False,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """A restricted Boltzmann machine with ``units`` hidden units (kRBMVis and kRBMHid); its feature is their means.

    A model with one trains by contrastive divergence, and the layers below it do not change. Units are binary unless
    ``gaussian``; ``persistent`` chains continue from batch to batch. Its params have the layer's name: ``rbm_weight``
    (units, n), ``rbm_visible_bias`` and ``rbm_bias``.
    """

    def write(writer: LayerWriter) -> Feature:
        visible, hidden = f"{writer.name}_visible", writer.name
        settings = {"hdim": units, "bias_term": use_bias}
        weight, visible_bias, bias = param_names(writer.name)
        biases = [{"name": visible_bias}] if use_bias else []
        below = writer.add(
            "kRBMVis",
            name=visible,
            further=[hidden],
            rbm_conf={**settings, "gaussian": gaussian_visible},
            param=[{"name": weight}, *biases],
            inits={"weight": NORMAL if kernel_initializer is None else kernel_initializer},
        )
        writer.net.owners.pop(id(writer.builder), None)
        return writer.add(
            "kRBMHid",
            sources=[below],
            rbm_conf={**settings, "gaussian": gaussian, "persistent": persistent},
            param=[{"name": f"{weight}_hidden", "share_from": weight}, *([{"name": bias}] if use_bias else [])],
        )

    return write


def param_names(machine: str) -> tuple[str, str, str]:
    """Return the names of an RBM's weight, visible bias and hidden bias."""
    return f"{machine}_weight", f"{machine}_visible_bias", f"{machine}_bias"


@with_types
def encoder(machine: LayerBuilder) -> LayerBuilder:
    """Return a dense layer that computes an RBM's hidden units with its params, to build an auto-encoder.

    It has a sigmoid unless the units are gaussian.
    """
    name, settings = machine_of(machine)
    weight, _, bias = param_names(name)
    params = [ParamConf(name=weight), *([ParamConf(name=bias)] if settings.get("use_bias", True) else [])]
    activation = None if settings.get("gaussian") else "sigmoid"
    init = settings.get("kernel_initializer") or NORMAL
    return Dense(
        settings["units"], activation, settings.get("use_bias", True), init, name=f"{name}_encoder", param=params
    )


@with_types
def decoder(machine: LayerBuilder, units: int) -> LayerBuilder:
    """Return a dense layer that computes an RBM's ``units`` visible units from its hidden units.

    Its weight is the transposed weight of :func:`encoder`, which must be in the same model.
    """
    name, settings = machine_of(machine)
    weight, bias, _ = param_names(name)
    params = [ParamConf(name=f"{weight}_transposed", share_from=weight)]
    if settings.get("use_bias", True):
        params.append(ParamConf(name=bias))
    activation = None if settings.get("gaussian_visible") else "sigmoid"
    return Dense(
        units, activation, settings.get("use_bias", True), "zeros", transpose=True, name=f"{name}_decoder", param=params
    )


def machine_of(machine: LayerBuilder) -> tuple[str, dict[str, Any]]:
    """Return an RBM's name and settings."""
    if not isinstance(machine, LayerBuilder) or machine.kind != "RBM" or machine.name is None:
        raise UserError(f'give nn.RBM(..., name="rbm1"), a machine with a name, not {machine!r}')
    return machine.name, dict(machine.settings)
