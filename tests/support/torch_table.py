"""Modules of PyTorch by name, those that become models and those that are refused, each with the shapes of records."""

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, weight_norm

Make = Callable[[], Any]
VECTORS, STEPS, IMAGES, VOLUMES, CODES = (6,), (4, 8), (4, 6, 5), (2, 4, 5, 3), (5,)


class Run(nn.Module):
    """A function of a module with some layers, and of its arguments, as a forward."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module):
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Any) -> Any:
        return self.function(self, *self.layers, x)


def run(shape: tuple[int, ...], function: Callable[..., Any], *makes: Make, codes: int = 0) -> Any:
    """Return the shape of records, the number of codes, and what makes the module of a function and its layers."""
    return (shape,), codes, lambda: Run(function, *(make() for make in makes))


def shared_heads(queries: Any, keys: Any) -> Any:
    """Return attention of four heads of queries, (B, T, 8), of which two each share keys and values, (B, T, 4)."""
    q, k = (x.unflatten(2, (-1, 2)).transpose(1, 2) for x in (queries, keys))
    return F.scaled_dot_product_attention(q, k, k, enable_gqa=True).transpose(1, 2).flatten(2)


def of(shape: tuple[int, ...], make: Make) -> Any:
    """Return the shape of records, no codes, and what makes a module of one layer."""
    return (shape,), 0, lambda: nn.Sequential(make())


def linear() -> nn.Linear:
    """Return a fully connected layer of vectors."""
    return nn.Linear(6, 4)


class Attention(nn.Module):
    """The attention of timm's ViT; with a table of positions that is learnt, that of Swin's windows."""

    def __init__(self, positions: bool = False):
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(1, 2, 5, 5)) if positions else 0.0

    def forward(self, x: Any) -> Any:
        rows, steps, width = x.shape
        q, k, v = self.qkv(x).reshape(rows, steps, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        weights = ((q * 0.5) @ k.transpose(-2, -1) + self.table).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(rows, steps, width))


class Padded(nn.Module):
    """Attention that does not see padded steps, and the mean of those that are there."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.words, self.layer, self.out = nn.Embedding(7, 8), layer, nn.Linear(8, 3)

    def forward(self, codes: Any) -> Any:
        mask = (codes == 0) & (torch.arange(5) > 0)
        x = self.words(codes)
        if isinstance(self.layer, nn.MultiheadAttention):
            x = self.layer(x, x, x, key_padding_mask=mask)[0]
        else:
            x = self.layer(x, src_key_padding_mask=mask)
        is_there = (~mask).unsqueeze(-1).float()
        return self.out((x * is_there).sum(1) / is_there.sum(1).clamp(min=1))


class Translator(nn.Module):
    """An encoder whose last states are the first ones of a decoder."""

    def __init__(self, kind: str, layers: int = 1, **settings: Any):
        super().__init__()
        self.words, make = nn.Embedding(7, 8), getattr(nn, kind)
        self.encoder, self.decoder = (make(8, 6, layers, batch_first=True, **settings) for _ in range(2))
        self.out = nn.Linear(6, 3)

    def forward(self, codes: Any) -> Any:
        x = self.words(codes)
        _, state = self.encoder(x)
        return self.out(self.decoder(x, state)[0].mean(1))


class LearntState(nn.Module):
    """A recurrent layer that begins with a param."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.state = nn.GRU(8, 6, batch_first=True), nn.Parameter(torch.randn(1, 1, 6))

    def forward(self, x: Any) -> Any:
        return self.layer(x, self.state.expand(1, len(x), 6).contiguous())[0]


class Functions(nn.Module):
    """Functions that take params, by other names than those of PyTorch's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.scale, self.shift = (nn.Parameter(torch.randn(size)) for size in ((4, 4, 3, 3), 4, 4))
        self.head = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Any) -> Any:
        y = F.conv2d(x, self.kernel, self.shift, padding=1).mean((2, 3))
        return F.linear(F.layer_norm(y, (4,), self.scale), self.head)


class ChannelNorm(nn.LayerNorm):
    """A layer normalisation of the channels of images, as in timm."""

    def forward(self, x: Any) -> Any:
        y = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class Frozen(nn.Module):
    """A batch normalisation that stays in evaluation, as in fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Tied(nn.Module):
    """A weight with two names, of which the forward uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.words = nn.Parameter(torch.randn(7, 4)), nn.Embedding(7, 4)
        self.words.weight = self.weight

    def forward(self, codes: Any) -> Any:
        return self.words(codes).mean(1)


def positional(layers: Any, x: Any) -> Any:
    """Return steps with sines and cosines of their numbers, standardised by hand."""
    angles = torch.arange(4).unsqueeze(1) * torch.exp(torch.arange(0, 8, 2) * (-math.log(1e4) / 8))
    y = layers(x) + torch.cat([angles.sin(), angles.cos()], 1)
    return (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + 1e-6)


def lstm() -> nn.LSTM:
    """Return a recurrent layer with two states."""
    return nn.LSTM(6, 6, batch_first=True)


def stepping(module: Any, layer: Any, x: Any) -> Any:
    """Return the features of a layer that is called for each step with the state of the step before."""
    _, state = layer(x)
    features = []
    for step in range(x.shape[1]):
        feature, state = layer(x[:, step : step + 1], state)
        features.append(feature)
    return torch.cat(features, 1)


def conv1d() -> nn.Conv1d:
    """Return a convolution of steps."""
    return nn.Conv1d(4, 3, 3)


def zero_linear() -> nn.Linear:
    """Return a layer whose outputs are 0, so that gradients at 0 count."""
    layer = linear()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


WINDOW = {"groups": 2, "dilation": 2, "stride": 2, "padding": 1, "output_padding": 1}
TRANSPOSED = {1: WINDOW, 2: {"groups": 4, "dilation": (2, 1), "stride": (1, 2)}, 3: {"dilation": 2, "bias": False}}
ENCODER = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
TABLE: dict[str, tuple[tuple[tuple[int, ...], ...], int, Make]] = {
    # The same in both phases.
    "equal branches": run(VECTORS, lambda m, a, x: a(x) + 1 if m.training else a(x) + 1.0, linear),
    "dropout of 0": run(VECTORS, lambda m, a, x: F.dropout(a(x), 0.0, m.training), linear),
    "frozen norm": ((IMAGES,), 0, Frozen),
    "frozen under no_grad": run(
        VECTORS, lambda m, a, b, x: b(torch.no_grad()(a)(x).detach()), lambda: linear().requires_grad_(False),
        lambda: nn.Linear(4, 2),
    ),
    # Axes, reductions and constants.
    **{
        f"padded {shape}, {mode}": (
            (shape,), 0, lambda shape=shape, mode=mode: nn.Sequential(
                getattr(nn, f"Conv{len(shape) - 1}d")(shape[0], 3, 3, padding=2, padding_mode=mode)
            ),
        )
        for mode in ("reflect", "replicate", "circular") for shape in (STEPS, VOLUMES)
    },
    "same, circular": ((STEPS,), 0, lambda: nn.Sequential(
        nn.Conv1d(4, 3, 4, padding="same", padding_mode="circular", dilation=2)
    )),
    "pads of steps": ((STEPS,), 0, lambda: nn.Sequential(
        nn.ReflectionPad1d((2, 1)), nn.Conv1d(4, 4, 3), nn.ConstantPad1d(1, 1.5), nn.ReplicationPad1d((0, 2))
    )),
    "causal": run(STEPS, lambda m, a, x: F.pad(a(F.pad(x, (4, 0))), (1, 0, 0, 2)), lambda: nn.Conv1d(4, 3, 3, 1, 0, 2)),
    "upsampled": ((STEPS,), 0, lambda: nn.Sequential(
        nn.Upsample(scale_factor=2), nn.Conv1d(4, 3, 3), nn.Upsample(scale_factor=3, mode="linear")
    )),
    "means": run(
        STEPS, lambda m, a, x: a(x).mean(-1) + a(x).mean(2, True).squeeze(-1) - a(x).sum((1, 2))[:, None], conv1d
    ),
    "mean of channels": run(
        IMAGES, lambda m, a, x: a(x).mean(1, keepdim=True) * x.amax((2, 3), True), lambda: nn.Conv2d(4, 3, 1)
    ),
    "extrema": run(
        STEPS, lambda m, a, x: a(x).max(1)[0][:, :3] + a(x).amin(-1) + torch.max(a(x), x[:, :3, :6]).amax(2), conv1d
    ),
    "adaptive maxima": ((IMAGES,), 0, lambda: nn.Sequential(nn.Conv2d(4, 3, (1, 2)), nn.AdaptiveMaxPool2d((2, 1)))),
    "absolute": run(VECTORS, lambda m, a, x: a(x).abs() + torch.abs(x[:, :4]), zero_linear),
    "edges": run(VECTORS, lambda m, a, x: F.relu6(a(x)) + F.hardtanh(a(x), 0.0, 1.0), zero_linear),
    "constants": run(VECTORS, lambda m, a, x: torch.cat(
        [torch.maximum(a(x), torch.zeros_like(x[:, :4])), x.new_full((len(x), 2), 0.5)], 1
    ) + torch.ones_like(x), linear),
    "stacked": run(VECTORS, lambda m, a, x: torch.stack([a(x), x[:, :4]], 1).softmax(1).flatten(1), linear),
    "unbound": run((3, 6), lambda m, a, x: sum(part * number for number, part in enumerate(a(x).unbind(1))), linear),
    "chosen": run(VECTORS, lambda m, a, x: torch.where(x[:, :4] > 0, a(x), -1.0) * (x[:, 1:5] <= x[:, :4]), linear),
    "lengths": run(VECTORS, lambda m, a, x: F.normalize(a(x), dim=-1) * a(x).var(-1, False, keepdim=True), linear),
    "by hand": run((4, 8), lambda m, a, x: positional(a, x), lambda: nn.Linear(8, 8)),
    **{
        f"transposed {axes}": ((shape,), 0, lambda axes=axes, channels=shape[0]: nn.Sequential(
            getattr(nn, f"ConvTranspose{axes}d")(channels, 8, 3, **TRANSPOSED[axes])
        ))
        for axes, shape in {1: STEPS, 2: IMAGES, 3: VOLUMES}.items()
    },
    # Attention and recurrence.
    "heads of a ViT": (((5, 8),), 0, Attention),
    "heads that share keys": run(
        (5, 8), lambda m, a, b, x: shared_heads(a(x), b(x)), lambda: nn.Linear(8, 8), lambda: nn.Linear(8, 4)
    ),
    "repeated": run((3, 4), lambda m, a, x: a(x.repeat(1, 2, 1)), lambda: nn.Linear(4, 5)),
    "relative positions": (((5, 8),), 0, lambda: Attention(True)),
    "unseen keys": ((CODES,), 7, lambda: Padded(nn.MultiheadAttention(8, 2, batch_first=True))),
    "unseen steps": ((CODES,), 7, lambda: Padded(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **ENCODER), 2)
    )),
    **{kind: ((CODES,), 7, lambda kind=kind: Translator(kind)) for kind in ("GRU", "RNN")},
    "LSTM": ((CODES,), 7, lambda: Translator("LSTM", 2)),
    "last cells": run((5, 8), lambda m, a, x: a(x)[1][1][-1], lambda: nn.LSTM(8, 6, batch_first=True)),
    "states and cells": run((5, 6), lambda m, a, x: a(a(x)[0].to("cpu"))[1][1][-1], lstm),
    "states in the wrong order": run((5, 6), lambda m, a, b, x: b(x, a(x)[1][::-1])[0], lstm, lstm),
    "step by step": run((3, 6), stepping, lambda: nn.GRU(6, 6, batch_first=True)),
    "one number a record": run(
        VECTORS, lambda m, a, x: torch.sigmoid(a(x).sum(-1) * 2 + x[:, 0])[:, None] / a(x).abs().sum(1)[:, None], linear
    ),
    "learnt state": (((5, 8),), 0, LearntState),
    # Params.
    "functions": ((IMAGES,), 0, Functions),
    "norm of channels": ((IMAGES,), 0, lambda: nn.Sequential(nn.Conv2d(4, 3, 1), ChannelNorm(3))),
    "tied": ((CODES,), 7, Tied),
    "one weight in several calls": run(
        IMAGES, lambda m, a, x: F.conv2d(F.conv2d(x, a.weight, padding=1), a.weight, a.bias), lambda: nn.Conv2d(4, 4, 3)
    ),
}  # fmt: skip


class Counter(nn.Module):
    """A forward that counts its calls, in Python or in a buffer."""

    def __init__(self, in_buffer: bool):
        super().__init__()
        self.layer, self.in_buffer, self.calls = linear(), in_buffer, 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        if self.in_buffer:
            self.count += 1
            return self.layer(x)
        self.calls += 1
        return self.layer(x) * self.calls


def swallowed(module: Any, layer: Any, x: Any) -> Any:
    """Return what depends on numbers, whose error is caught."""
    try:
        return layer(x) if x[:, 0].amax() > 0 else -layer(x)
    except Exception:
        return layer(x)


def normed() -> nn.Module:
    """Return a layer with the old form of weight_norm, which PyTorch deprecates."""
    with warnings.catch_warnings(action="ignore"):
        return weight_norm(conv1d())


def pruned() -> nn.Module:
    """Return a layer of which half the weights are cut away."""
    module = nn.Sequential(linear())
    prune.l1_unstructured(module[0], "weight", 0.5)
    return module


class Masked(nn.Module):
    """Attention with a mask that is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any, mask: Any) -> Any:
        return self.layer(x, x, x, key_padding_mask=mask)[0]


def filled(layer: Any, x: Any) -> Any:
    """Return numbers of which some were changed in place, by a mask of the batch."""
    zeros = torch.zeros(len(x), 4)
    zeros.masked_fill_(x[:, :4] > 0, -1.0)
    return layer(x) + zeros


BY_PHASE, REMOVE = "depends on self.training: ", "write torch.nn.utils."
REFUSED: dict[str, tuple[Any, str]] = {
    "branch": (
        run(VECTORS, lambda m, a, x: a(x) * 2 if m.training else a(x), linear),
        f"{BY_PHASE}Arithmetic is there in training only; write",
    ),
    "probabilities": (
        run(VECTORS, lambda m, a, x: a(x) if m.training else a(x).softmax(-1), linear),
        f"{BY_PHASE}Softmax is there in evaluation only",
    ),
    "second result": (
        run(VECTORS, lambda m, a, x: (a(x), x) if m.training else a(x), linear),
        "it returns 2 tensors in training, 1 in evaluation",
    ),
    "always dropped": (
        run(VECTORS, lambda m, a, x: F.dropout(a(x)), linear),
        "drops in evaluation, too: give it training=self.training",
    ),
    "mean of batches": (of(IMAGES, lambda: nn.BatchNorm2d(4, momentum=None)), "momentum=None .* give it a number"),
    "no statistics": (of(IMAGES, lambda: nn.BatchNorm2d(4, track_running_stats=False)), "track_running_stats=False"),
    "numbers": (run(VECTORS, swallowed, linear), "__bool__ .which depends on numbers of a batch"),
    "many records": (
        run(VECTORS, lambda m, a, x: a(x) if len(x) > 32 else -a(x), linear),
        "depends on the number of records of a batch: it computes something else for 3 than for",
    ),
    "mean by hand": (run(VECTORS, lambda m, a, x: a(x) / (2 * len(x)), linear), "depends on the number of records"),
    "counter": (((VECTORS,), 0, lambda: Counter(False)), "does not compute the same at each call"),
    "buffer": (((VECTORS,), 0, lambda: Counter(True)), "changes its buffer count"),
    "noise": (run(VECTORS, lambda m, a, x: a(x) + torch.randn(1, 4), linear), "draws random numbers in training"),
    "layer drop": (
        run(VECTORS, lambda m, a, x: a(x) if random.random() < 2 else x, linear), "draws random numbers in training"
    ),
    "no_grad": (
        run(VECTORS, lambda m, a, x: torch.no_grad()(a)(x), linear), r"under torch.no_grad.. .*requires_grad_.False"
    ),
    "data": (run(VECTORS, lambda m, a, x: a(x).data, linear), "data .which stops gradients"),
    "cut off": (run(VECTORS, lambda m, a, x: a(x).long() * 1.0, linear), "to integers .* cuts off fractions"),
    "mask in float": (
        (((5, 8), (5,)), 0, lambda: Masked()), "with a mask that is an argument as it is; give it mask.bool"
    ),
    "filled": (run(VECTORS, lambda m, a, x: filled(a, x), linear), "changes in place by those of a batch"),
    "weight_norm": (
        of(STEPS, normed),
        rf'0.weight is computed at each call .*{REMOVE}remove_weight_norm.module.get_submodule."0".',
    ),
    "parametrized": (
        of(STEPS, lambda: parametrizations.spectral_norm(conv1d())), f"{REMOVE}parametrize.remove_parametrizations"
    ),
    "pruned": (((VECTORS,), 0, pruned), f"L1Unstructured.; {REMOVE}prune.remove"),
}  # fmt: skip
