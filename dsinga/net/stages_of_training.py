"""Builds the net of each stage of training, if some params are trained only later."""

from __future__ import annotations

from dataclasses import replace

from dsinga.base.errors import UserError
from dsinga.net.neuralnet import NeuralNet


def with_stages(net: NeuralNet) -> NeuralNet:
    """Return a net that keeps later params unchanged until the steps at which their training starts."""
    starts = sorted({0, *(param.first_step for param in net.params.values() if param.trainable)})
    if net.by_step:
        raise UserError("params have a first_step, but the net grows with training already; leave one of the two out")
    stages = ((start, _stage(net, start)) for start in starts[:-1])
    return replace(net, by_step=(*stages, (starts[-1], net)))


def _stage(net: NeuralNet, start: int) -> NeuralNet:
    params = {
        name: replace(param, conf=param.conf.replace(static=True)) if param.first_step > start else param
        for name, param in net.params.items()
    }
    return replace(net, params=params)
