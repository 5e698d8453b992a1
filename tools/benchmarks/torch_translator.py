"""The net of ``dsinga.models.transformer`` in PyTorch, written as its users do.

One projection of query, key and value of self-attention, ``scaled_dot_product_attention``, and cross-entropy with
``ignore_index``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.benchmarks.nets import SENTENCE_STEPS, WORDS

BLOCKS, WIDTH, HEADS, HIDDEN = 3, 256, 4, 512
DROPOUT, SMOOTHING = 0.1, 0.1


class Attention(nn.Module):
    """Multi-head attention, with one projection of query, key and value if they are of one sequence."""

    def __init__(self, own: bool):
        super().__init__()
        self.project = nn.Linear(WIDTH, (3 if own else 1) * WIDTH)
        self.memory = None if own else nn.Linear(WIDTH, 2 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, memory: Any, mask: Any, causal: bool) -> Any:
        query = self.project(x)
        parts = query.chunk(3, 2) if self.memory is None else (query, *self.memory(memory).chunk(2, 2))
        q, k, v = (part.view(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.output(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A block of the encoder, or of the decoder, which also attends to the encoder."""

    def __init__(self, crosses: bool):
        super().__init__()
        self.own, self.cross = Attention(True), Attention(False) if crosses else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 + crosses))
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Any, memory: Any, seen: Any) -> Any:
        causal = self.cross is not None
        x = x + self.drop(self.own(self.norms[0](x), None, None if causal else seen, causal))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norms[1](x), memory, seen, False))
        return x + self.drop(self.perceptron(self.norms[-1](x)))


class Translator(nn.Module):
    """The net; what it returns are the scores (B, T, WORDS) of the next words."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(WORDS, WIDTH) for _ in range(2))
        self.encoder = nn.ModuleList(Block(False) for _ in range(BLOCKS))
        self.decoder = nn.ModuleList(Block(True) for _ in range(BLOCKS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.drop = nn.Dropout(DROPOUT)
        angles = torch.arange(SENTENCE_STEPS)[:, None] / 10_000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.positions = torch.stack([angles.sin(), angles.cos()], 2).reshape(SENTENCE_STEPS, WIDTH)

    def embed(self, language: int, codes: Any) -> Any:
        return self.drop(self.embeddings[language](codes.clamp(min=0)) * math.sqrt(WIDTH) + self.positions)

    def forward(self, source: Any, target: Any) -> Any:
        seen = (source >= 0)[:, None, None]
        x, y = self.embed(0, source), self.embed(1, target)
        for block in self.encoder:
            x = block(x, None, seen)
        x = self.norms[0](x)
        for block in self.decoder:
            y = block(y, x, seen)
        return functional.linear(self.norms[1](y), self.embeddings[1].weight)

    def loss(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch of codes (B, T) and labels (B, T), -1 after the end."""
        scores = self(source, target).view(-1, WORDS)
        return functional.cross_entropy(scores, labels.view(-1), ignore_index=-1, label_smoothing=SMOOTHING)
