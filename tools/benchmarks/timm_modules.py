"""Modules of PyTorch that timm does not have, to be measured as its nets are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. (2015) with batch normalisation and padding, for fields of 3 channels."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256, 512)):
        super().__init__()
        pairs = [*zip((3, *widths), widths, strict=False)]
        self.down = nn.ModuleList(self.block(*pair) for pair in pairs)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(upper, lower, 2, 2) for lower, upper in pairs[:0:-1])
        self.up = nn.ModuleList(self.block(2 * lower, lower) for lower in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], 1, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        """Return two convolutions, each with normalisation and rectifier."""
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        """Return the field (B, 1, H, W) for images (B, 3, H, W)."""
        kept = []
        for number, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if number else x)
            kept.append(x)
        for rise, block, aside in zip(self.rise, self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([aside, rise(x)], 1))
        return self.head(x)


class Block(nn.Module):
    """A block of :class:`GPT`: causal attention, and two dense layers, each added to what it is given, normalised."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        """Return features (B, T, width) for the same."""
        qkv = self.qkv(self.norms[0](x)).reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """A language model of 91 million params, whose scores have the embedding's weights (Radford et al., 2019)."""

    def __init__(self, codes: int, width: int = 768, heads: int = 12, blocks: int = 12):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(codes, width), nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.scores = nn.Linear(width, codes, bias=False)
        self.embedding.weight = self.scores.weight

    def forward(self, codes: Any) -> Any:
        """Return the next code's scores (B, T, codes) for texts (B, T)."""
        return self.scores(self.norm(self.blocks(self.embedding(codes))))
