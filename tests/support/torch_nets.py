"""Nets written for PyTorch, as their users write them: a residual net, a U-Net, BERT by modules and by hand; layers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """The basic block of He et al., Deep Residual Learning (2016), with one rectifier module that is called twice."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18 as torchvision has it, with fewer channels."""

    def __init__(self, width: int = 4, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for number, stride in enumerate((1, 2, 2, 2)):
            outputs = width * 2**number
            stage = nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))
            setattr(self, f"layer{number + 1}", stage)
            inputs = outputs
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with two kinds of normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs, momentum=0.2, eps=1e-3), nn.ReLU(True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """A U-Net (Ronneberger et al., 2015) that grows by a transposed convolution and by interpolation."""

    def __init__(self, channels: int = 1, width: int = 4, outputs: int = 2):
        super().__init__()
        self.down1, self.down2 = double_conv(channels, width), double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.join1 = double_conv(3 * width, width)
        self.out = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Any) -> Any:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        y = self.bottom(F.max_pool2d(second, 2))
        y = self.join2(torch.cat([second, self.up2(y)], dim=1))
        return self.out(self.join1(torch.cat([first, self.up1(y)], dim=1)))


class Bert(nn.Module):
    """BERT (Devlin et al., 2019) of torch.nn.TransformerEncoderLayer, with a table of learnt positions."""

    def __init__(self, words: int = 20, steps: int = 16, width: int = 16, classes: int = 3, dropout: float = 0.0):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(steps, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, codes: Any) -> Any:
        position = torch.arange(codes.size(1), device=codes.device).unsqueeze(0)
        x = self.tokens(codes) + self.positions(position) + self.segments(torch.zeros_like(position))
        x = self.encoder(self.norm(x))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class Attention(nn.Module):
    """Attention of several heads, written by products of matrices."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        rows, steps, width = x.shape
        shape = rows, steps, self.heads, width // self.heads
        q, k, v = (project(x).view(*shape).transpose(1, 2) for project in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(shape[-1])).softmax(dim=-1)
        return self.out((self.dropout(weights) @ v).transpose(1, 2).reshape(rows, steps, width))


class LanguageModel(nn.Module):
    """Attention by hand, by a function and under a mask; a param of its own; one weight for input and output."""

    def __init__(self, words: int = 20, steps: int = 16, width: int = 16):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Parameter(torch.randn(1, steps, width))
        self.register_buffer("mask", torch.tril(torch.ones(steps, steps)).view(1, 1, steps, steps), persistent=False)
        self.attention, self.norm = Attention(width, 4), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, codes: Any, labels: Any = None) -> Any:
        rows, steps = len(codes), codes.shape[1]
        x = self.tokens(codes) * 2 + self.positions[:, :steps]
        x = x + self.attention(self.norm(x))
        parts = self.projections(x).chunk(3, dim=-1)
        q, k, v = (part.view(rows, steps, 2, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).contiguous().view(rows, steps, -1)
        scores = (q @ k.transpose(-2, -1)).masked_fill(self.mask[:, :, :steps, :steps] == 0, float("-inf"))
        x = x + F.gelu((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), approximate="tanh")
        y = self.head(x.mean(dim=1))
        return y if labels is None else (y, labels)


class Call(nn.Module):
    """A function of one tensor as a module, with a layer below, so that there is a param to train."""

    def __init__(self, function: Callable[[Any], Any], first: nn.Module):
        super().__init__()
        self.first, self.function = first, function

    def forward(self, x: Any) -> Any:
        return self.function(self.first(x))


def twice(layer: nn.Module) -> nn.Module:
    """Return a module whose only layer is called twice."""
    return Call(lambda y: layer(torch.tanh(y)), layer)


class Recurrent(nn.Module):
    """Recurrent layers, and a function of them and their input."""

    def __init__(self, layers: nn.Module, function: Callable[[Any, Any], Any]):
        super().__init__()
        self.layers, self.function = layers, function

    def forward(self, x: Any) -> Any:
        return self.function(self.layers, x)


def last_states(layers: Any, x: Any) -> Any:
    """Return the last states of both directions, of layers that begin with zeros which their user makes."""
    begin = torch.zeros(4, x.size(0), layers.hidden_size, device=x.device)
    _, (h, _) = layers(x, (begin, begin))
    return torch.cat((h[-2], h[-1, :, :]), dim=1)


def all_states(layers: Any, x: Any) -> Any:
    """Return the last states of all layers and directions beside the last step."""
    y, h = layers(x)
    return torch.cat([h.transpose(0, 1).reshape(len(x), -1), y[:, -1]], 1)


def steps_first(layers: Any, x: Any) -> Any:
    """Return the steps of layers that take (T, B, n), and the states of the last layer."""
    y, h = layers(x.transpose(0, 1) * 0.5)
    h = h.view(2, 2, len(x), layers.hidden_size)[-1]
    return torch.cat([torch.relu(y).permute(1, 0, 2).flatten(1), h[0], h[1:].squeeze(0)], 1)


IMAGES, STEPS, VECTORS = (4, 8, 8), (4, 8), (6,)
# Layers by the shape of records.
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "grouped": (IMAGES, lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding="same", groups=2, dilation=2))),
    "depthwise": (IMAGES, lambda: nn.Sequential(nn.Conv2d(4, 4, (3, 5), (2, 1), (1, 2), groups=4, bias=False))),
    "circular": (IMAGES, lambda: nn.Sequential(nn.Conv2d(4, 3, 3, padding=(1, 2), padding_mode="circular"))),
    "conv1d": (STEPS, lambda: nn.Sequential(nn.Conv1d(4, 3, 3, 2, 1), nn.BatchNorm1d(3), nn.MaxPool1d(2))),
    "conv3d": ((2, 4, 6, 4), lambda: nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.BatchNorm3d(3), nn.AvgPool3d(2))),
    "transposed": (IMAGES, lambda: nn.Sequential(nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1))),
    "transposed1d": (STEPS, lambda: nn.Sequential(nn.ConvTranspose1d(4, 3, 4, 2, 1))),
    "no affine": (IMAGES, lambda: nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 2, 1))),
    "instance": (IMAGES, lambda: nn.Sequential(nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True))),
    "norms": (STEPS, lambda: nn.Sequential(nn.LayerNorm((4, 8), eps=1e-3), nn.LayerNorm(8, bias=False), nn.RMSNorm(8))),
    "flattened": (IMAGES, lambda: Call(
        lambda y: y.clone().add_(1).flatten(1) * y.flatten(1) + torch.linspace(0, 1, 144),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Tanh(), nn.LayerNorm(144), nn.Unflatten(1, (4, 6, 6)))
    )),
    "slopes": (IMAGES, lambda: nn.Sequential(nn.PReLU(), nn.Conv2d(4, 3, 1), nn.PReLU(3, init=0.1))),
    "means": (IMAGES, lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d((2, 1)))),
    "means without padding": (
        IMAGES, lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False))
    ),
    "rounded up": (IMAGES, lambda: nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.MaxPool2d((3, 2), 2, (1, 0), ceil_mode=True), nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.Flatten(2), nn.AvgPool1d(2, 2, ceil_mode=True),
    )),
    "uneven windows": (IMAGES, lambda: nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.MaxPool2d(2, 1, dilation=(2, 1)), nn.AdaptiveAvgPool2d((4, 5)), nn.Flatten(2),
        nn.AdaptiveMaxPool1d(7), nn.MaxPool1d(2, dilation=3, ceil_mode=True),
    )),
    "pads": (IMAGES, lambda: nn.Sequential(
        nn.ReflectionPad2d((1, 2, 0, 1)), nn.Conv2d(4, 2, 3), nn.ConstantPad2d((1, -2, -1, 0), 0.5)
    )),
    "rows of images": ((3, 5, 6), lambda: nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (1, 3)), nn.Flatten(1, 2))),
    "twice": (VECTORS, lambda: twice(nn.Linear(6, 6))),
    "statistics twice": (VECTORS, lambda: twice(nn.BatchNorm1d(6))),
    "positions": (STEPS, lambda: Call(lambda y: y[:, ::2, None], nn.Linear(8, 4))),
    "activations": (VECTORS, lambda: nn.Sequential(
        nn.Linear(6, 8), nn.Hardswish(), nn.LeakyReLU(0.2), nn.ReLU6(), nn.Hardtanh(-0.5, 2.0), nn.GELU("tanh"),
        nn.Linear(8, 4), nn.Hardsigmoid(), nn.Sigmoid(), nn.Identity(), nn.Dropout(0.0), nn.Softmax(dim=-1),
        nn.Linear(4, 8), nn.Mish(), nn.ELU(0.5), nn.CELU(2.0), nn.SELU(), nn.Softplus(2), nn.Softsign(),
        nn.Linear(8, 4), nn.LogSigmoid(), nn.Hardsigmoid(), nn.Hardswish(),
    )),
    "formulas": (VECTORS, lambda: Call(
        lambda y: torch.log(torch.exp(y) + 1) * torch.erf(y) - y.sin() + torch.cos(y), nn.Linear(6, 4)
    )),
    "operators": (VECTORS, lambda: Call(
        lambda y: torch.sqrt(y.square() + 1) - (2 - y) / (1 + y**2) + torch.clamp(-y, min=-0.1) * 3 - 1 / (y * y + 2),
        nn.Linear(6, 4),
    )),
    "LSTM": (STEPS, lambda: Recurrent(
        nn.LSTM(8, 3, 2, bidirectional=True, batch_first=True), last_states
    )),
    "LSTM steps": (STEPS, lambda: Recurrent(nn.LSTM(8, 3, batch_first=True, bias=False), lambda layer, x: layer(x)[0])),
    "GRU": (STEPS, lambda: Recurrent(nn.GRU(8, 3, 2, bidirectional=True, batch_first=True), all_states)),
    "GRU steps first": (STEPS, lambda: Recurrent(nn.GRU(8, 3, 2, bias=False, bidirectional=True), steps_first)),
    "RNN": (STEPS, lambda: Recurrent(nn.RNN(8, 3, 2), lambda layer, x: layer(x.transpose(0, 1))[0][-1])),
    "attention steps first": (STEPS, lambda: Recurrent(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), lambda layer, x: layer(x.transpose(0, 1))[-1]
    )),
    "interpolated": (IMAGES, lambda: Call(
        lambda y: F.interpolate(F.interpolate(y, scale_factor=2), size=(32, 16), mode="bilinear"), nn.Conv2d(4, 2, 1)
    )),
    "resized": (IMAGES, lambda: nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.Upsample((5, 11), mode="bilinear"), nn.Upsample(scale_factor=1.3, mode="bicubic"),
        nn.UpsamplingBilinear2d((9, 4)), nn.Upsample((5, 7)),
        Call(lambda y: F.interpolate(y, (4, 3), mode="bicubic", antialias=True), nn.Tanh()),
        Call(lambda y: F.interpolate(y, (4, 5), mode="area"), nn.Tanh()), nn.Flatten(2),
        nn.Upsample(8, mode="linear"), nn.Upsample(scale_factor=0.7, mode="nearest-exact"),
    )),
    "shuffled": (IMAGES, lambda: nn.Sequential(
        nn.Conv2d(4, 8, 1), nn.ChannelShuffle(2), nn.PixelShuffle(2), nn.Conv2d(2, 3, 3, padding=1),
        Call(lambda y: y.flip(1, -1)[:, [2, 0, 2]], nn.PixelUnshuffle(4)),
    )),
    "split": (IMAGES, lambda: Call(
        lambda y: torch.cat([part.mean((2, 3), keepdim=True) for part in y.split([1, 3], 1)], 1), nn.Conv2d(4, 4, 1)
    )),
}  # fmt: skip
