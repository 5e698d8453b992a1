"""The nets for fields of :mod:`dsinga.models` in PyTorch, computed from the params of a model."""

import math
from typing import Any

from tests.support.later_import import functional, torch

MODES = {"edge": "replicate", "reflect": "reflect", "periodic": "circular"}  # torch's


class Peer:
    """Layers of PyTorch with the params of a model, which have the shapes of dsinga's."""

    def __init__(self, params: dict[str, Any], padding: tuple[str, str], normalisation: str):
        self.params, self.padding, self.normalisation = params, padding, normalisation

    def convolve(self, name: str, x: Any, kernel: int = 3) -> Any:
        weight, bias = self.params[f"{name}_weight"], self.params.get(f"{name}_bias")
        side = kernel // 2
        for mode, sides in zip(self.padding, ((0, 0, side, side), (side, side, 0, 0)), strict=True):
            x = functional.pad(x, sides, MODES[mode]) if mode != "zero" else functional.pad(x, sides)
        return functional.conv2d(x, weight.reshape(len(weight), -1, kernel, kernel), bias)

    def normalise(self, name: str, x: Any) -> Any:
        if self.normalisation == "none":
            return x
        scale, bias = self.params[f"{name}_scale"], self.params[f"{name}_bias"]
        if self.normalisation == "batch":
            return functional.batch_norm(x, None, None, scale, bias, training=True, eps=1e-5)
        return functional.group_norm(x, math.gcd(x.shape[1], 8), scale, bias, eps=1e-5)

    def linear(self, x: Any) -> Any:
        weight = self.params["output_weight"]
        return functional.conv2d(x, weight[..., None, None], self.params["output_bias"])

    def unet(self, x: Any, depth: int) -> Any:
        def block(name: str, x: Any) -> Any:
            for number in (1, 2):
                x = self.normalise(f"{name}_norm{number}", self.convolve(f"{name}_conv{number}", x)).relu()
            return x

        skipped = []
        for level in range(depth):
            skipped.append(block(f"down{level}", x))
            x = functional.max_pool2d(skipped[-1], 2)
        x = block("bottom", x)
        for level in reversed(range(depth)):
            weight, bias = self.params[f"up{level}_grow_weight"], self.params[f"up{level}_grow_bias"]
            up = functional.conv_transpose2d(x, weight.reshape(len(weight), -1, 2, 2), bias, 2)
            x = block(f"up{level}", torch.cat([skipped[level], up], 1))
        return self.linear(x)

    def field_resnet(self, x: Any, blocks: int) -> Any:
        def convolved(name: str, x: Any, kernel: int = 3) -> Any:
            x = functional.leaky_relu(self.convolve(name, x, kernel), 0.3)
            return self.normalise(f"{name}_norm", x)

        x = convolved("conv", x, 7)
        for number in range(1, blocks + 1):
            x = x + convolved(f"block{number}_conv2", convolved(f"block{number}_conv1", x))
        return self.linear(x)
