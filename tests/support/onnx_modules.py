"""Modules of PyTorch that people export to ONNX, and their exports: nets for images, steps, texts and vectors."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.support.torch_nets import Bert, LanguageModel, ResNet18, UNet


def mlp() -> nn.Module:
    """Return three fully connected layers."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


class Fire(nn.Module):
    """The fire module of SqueezeNet (Iandola et al., 2016) and its classifier by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.expand1, self.expand3 = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1), nn.Conv2d(2, 4, 3, padding=1)
        self.classifier = nn.Sequential(nn.Conv2d(8, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x: Any) -> Any:
        y = F.relu(self.squeeze(x))
        y = torch.cat([F.relu(self.expand1(y)), F.relu(self.expand3(y))], 1)
        return torch.flatten(self.classifier(F.max_pool2d(y, 3, 2, ceil_mode=True)), 1)


def conv1d_net() -> nn.Module:
    """Return a net for signals, with dilated convolutions."""
    return nn.Sequential(
        nn.Conv1d(2, 4, 5, padding=2), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(4, 6, 3, padding=2, dilation=2), nn.ELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2021) with a class token and attention as timm writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def attention(self, x: Any) -> Any:
        """Return what each patch gathers from the others."""
        rows, steps, width = x.shape
        q, k, v = self.qkv(x).reshape(rows, steps, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(rows, steps, width))

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        x = x + self.attention(self.norm1(x))
        return self.head(self.norm(x + self.mlp(self.norm2(x)))[:, 0])


class Gpt(nn.Module):
    """A GPT as in nanoGPT: causal attention, GELU by tanh, one weight for words in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.ln_1, self.ln_2, self.ln_f = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.c_attn, self.c_proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.c_fc, self.c_out = nn.Linear(8, 32), nn.Linear(32, 8)
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.lm_head.weight = self.words.weight

    def attention(self, x: Any) -> Any:
        """Return what each step gathers from those before it."""
        rows, steps, width = x.size()
        q, k, v = self.c_attn(x).split(width, dim=2)
        q, k, v = (part.view(rows, steps, 2, width // 2).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(rows, steps, width))

    def forward(self, codes: Any) -> Any:
        x = self.words(codes) + self.positions(torch.arange(codes.shape[1]))
        x = x + self.attention(self.ln_1(x))
        x = x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return self.lm_head(self.ln_f(x))


class Tagger(nn.Module):
    """A tag for each word of a sentence by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(11, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, codes: Any) -> Any:
        return self.out(self.lstm(self.words(codes))[0])


class GruClassifier(nn.Module):
    """A class for a sequence by the last state of two GRU layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(4, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.gru(x)[1][-1])


class Bidirectional(nn.Module):
    """The largest states of an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 3, batch_first=True, bidirectional=True), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(x)[0].max(dim=1)[0])


class Recommender(nn.Module):
    """The mean of the vectors of what a user had, beside numbers of the user (a wide and deep net)."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.deep = nn.Embedding(11, 6), nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 1))
        self.wide = nn.Linear(4, 1)

    def forward(self, codes: Any, x: Any) -> Any:
        deep = self.deep(torch.cat([self.items(codes).mean(1), x], 1))
        return torch.sigmoid(deep + self.wide(x))


class ConvNeXt(nn.Module):
    """A block of ConvNeXt (Liu et al., 2022) with its scale of layers, and a group normalisation before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.group_norm = nn.Conv2d(3, 4, 2, 2), nn.GroupNorm(2, 4)
        self.dwconv, self.norm = nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.LayerNorm(4, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4)
        self.gamma, self.head = nn.Parameter(torch.full((4,), 0.5)), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        x = self.group_norm(self.stem(x))
        y = self.pwconv2(self.act(self.pwconv1(self.norm(self.dwconv(x).permute(0, 2, 3, 1)))))
        return self.head((x + (self.gamma * y).permute(0, 3, 1, 2)).mean([-2, -1]))


class SqueezeExcite(nn.Module):
    """A block whose channels are weighed by their means (Hu et al., 2018), with Swish and Hardsigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = (
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(1),
        )
        self.fc1, self.fc2, self.head = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = F.silu(self.norm(self.conv(x)))
        x = x * F.hardsigmoid(self.fc2(F.relu(self.fc1(self.pool(x)))))
        return self.head(self.pool(F.hardswish(x)).flatten(1))


Shape = tuple[int, ...]
# The shape of a record of each input, with the number of codes behind it where these are codes.
MODULES: dict[str, tuple[list[tuple[Shape, int]], Callable[[], nn.Module]]] = {
    "MLP": ([((6,), 0)], mlp),
    "ResNet-18": ([((3, 32, 32), 0)], ResNet18),
    "U-Net": ([((1, 16, 16), 0)], UNet),
    "fire module": ([((4, 8, 8), 0)], Fire),
    "net of signals": ([((2, 16), 0)], conv1d_net),
    "ViT": ([((3, 8, 8), 0)], ViT),
    "BERT": ([((12,), 20)], Bert),
    "GPT": ([((6,), 11)], Gpt),
    "language model by hand": ([((12,), 20)], LanguageModel),
    "LSTM tagger": ([((5,), 11)], Tagger),
    "GRU classifier": ([((5, 4), 0)], GruClassifier),
    "bidirectional LSTM": ([((5, 4), 0)], Bidirectional),
    "recommender": ([((3,), 11), ((4,), 0)], Recommender),
    "ConvNeXt block": ([((3, 8, 8), 0)], ConvNeXt),
    "squeeze and excite": ([((3, 8, 8), 0)], SqueezeExcite),
}


def records(name: str, count: int, seed: int = 0) -> list[Any]:
    """Return tensors of records for a module."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(codes, (count, *shape), generator=generator) if codes
        else torch.randn((count, *shape), generator=generator)
        for shape, codes in MODULES[name][0]
    ]  # fmt: skip


def made(name: str) -> nn.Module:
    """Return a module by its name, with running statistics that are not those with which it begins."""
    torch.manual_seed(1)
    module = MODULES[name][1]()
    for layer in module.modules():
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean.normal_(0, 0.3)
            layer.running_var.uniform_(0.5, 2)
    return module.eval()


def exported(module: nn.Module, inputs: list[Any], path: Path, exporter: str) -> None:
    """Write the ONNX file of a module, whose layers stay as they are.

    ``exporter`` is "traced" for the older one, "plain" for that of torch.export and "optimised" for what this one
    writes by default, where batch normalisations are in the weights of convolutions.
    """
    names = [f"input_{i}" for i in range(len(inputs))]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter != "traced":
            batch = torch.export.Dim("batch", min=2, max=64)
            torch.onnx.export(
                module, tuple(inputs), path, input_names=names, dynamo=True, verbose=False, external_data=False,
                dynamic_shapes=tuple({0: batch} for _ in inputs), opset_version=18, optimize=exporter == "optimised",
            )  # fmt: skip
            return
        torch.onnx.export(
            module, tuple(inputs), str(path), input_names=names, output_names=["output"], dynamo=False,
            dynamic_axes={name: {0: "batch"} for name in [*names, "output"]}, opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
        )  # fmt: skip
