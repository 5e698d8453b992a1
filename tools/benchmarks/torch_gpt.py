"""The small GPT in PyTorch: the net of dsinga.models.gpt, with its params."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-5


class GPT(nn.Module):
    """The net, with one product for queries, keys and values, and one for both inputs of a SwiGLU."""

    def __init__(self, params: Mapping[str, np.ndarray], blocks: int, heads: int, steps: int):
        super().__init__()
        tensors = {name: torch.tensor(value) for name, value in params.items()}
        self.embedding = nn.Parameter(tensors["embedding_weight"])
        self.blocks = nn.ModuleList(Block(tensors, f"block{number}", heads) for number in range(1, blocks + 1))
        self.last = nn.Parameter(tensors["last_norm_scale"])
        size = self.embedding.shape[1] // heads
        angles = torch.outer(torch.arange(steps), 10_000 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles))

    def forward(self, codes: Tensor) -> Tensor:
        """Return the scores (B, T, vocabulary) of codes (B, T)."""
        x = functional.embedding(codes, self.embedding)
        for block in self.blocks:
            x = block(x, self.rotations)
        return functional.linear(_norm(x, self.last), self.embedding)


class Block(nn.Module):
    """An attention and a perceptron, each added to its input."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str, heads: int):
        super().__init__()
        self.heads = heads

        def joined(*names: str) -> nn.Parameter:
            return nn.Parameter(torch.cat([tensors[f"{name}_{part}"] for part in names]))

        self.attention_norm = joined("attention_norm_scale")
        self.projections = joined("attention_query_weight", "attention_key_weight", "attention_value_weight")
        self.attention_output = joined("attention_output_weight")
        self.perceptron_norm = joined("perceptron_norm_scale")
        self.gate_and_up = joined("perceptron_gate_weight", "perceptron_up_weight")
        self.perceptron_output = joined("perceptron_output_weight")

    def forward(self, x: Tensor, rotations: Tensor) -> Tensor:
        """Return the feature (B, T, n) of x (B, T, n)."""
        batch, steps, width = x.shape
        projected = functional.linear(_norm(x, self.attention_norm), self.projections)
        query, keys, values = projected.view(batch, steps, 3 * self.heads, -1).transpose(1, 2).split(self.heads, 1)
        y = functional.scaled_dot_product_attention(
            _rotate(query, rotations), _rotate(keys, rotations), values, is_causal=True
        )
        x = x + functional.linear(y.transpose(1, 2).reshape(batch, steps, width), self.attention_output)
        gate, up = functional.linear(_norm(x, self.perceptron_norm), self.gate_and_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, self.perceptron_output)


def _norm(x: Tensor, scale: Tensor) -> Tensor:
    return functional.rms_norm(x, scale.shape, scale, EPSILON)


def _rotate(x: Tensor, rotations: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * rotations
    return torch.view_as_real(pairs).flatten(3)
