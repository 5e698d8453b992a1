"""Lookup, recurrent cells, conditional random fields and attention: the kernel interface for sequences.

Features (B, T, n) of attention have ``heads`` equal parts along their last axis. Each head has weights and a mean of
its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from dsinga.ops.types import CELL_ACTIVATIONS, Array, CellActivations


class SequenceOps(ABC):
    """Kernels of characters, words and sequences (B, T, ...)."""

    # -- characters and words --------------------------------------------------------------------------------

    @abstractmethod
    def one_hot(self, codes: Array, size: int) -> Array:
        """Integers (...) -> (..., size) float32: 1 at the integer's index, 0 elsewhere; all 0 where it is -1."""

    @abstractmethod
    def embedding(self, table: Array, codes: Array) -> Array:
        """Table (V, d), integers (...) -> (..., d): the rows of these numbers, zeros where a number is -1."""

    @abstractmethod
    def embedding_grad(self, codes: Array, dy: Array) -> tuple[Array, Array]:
        """Return the rows of the table that have a gradient, (k,) ascending, and their gradients, (k, d)."""

    # -- recurrent -------------------------------------------------------------------------------------------

    @abstractmethod
    def recurrent(
        self,
        cell: str,
        x: Array,
        params: Sequence[Array],
        state: Array | None,
        lengths: Array | None,
        reverse: bool,
        train: bool,
        activations: CellActivations = CELL_ACTIVATIONS,
    ) -> tuple[Array, Array, Any]:
        """Run sequences x (B, T, n) through a recurrent cell: (B, T, H), the last state (B, S), workspace if ``train``.

        Cells, their params (the last ones, biases, may be left out together) and the width S of a state:

        - "rnn": h' = tanh(x W_hxᵀ + h W_hhᵀ + b); W_hx (H, n), W_hh (H, H), b (H,). S = H.
        - "gru", SINGA's: z = σ(x W_zxᵀ + h W_zhᵀ + b_z), r likewise, c = tanh(x W_cxᵀ + b_c + r∘(h W_chᵀ)),
          h' = z∘h + (1 - z)∘c; z_hx, r_hx, c_hx (H, n), z_hh, r_hh, c_hh (H, H), b_z, b_r, b_c (H,). S = H.
        - "lstm": i, f, o by σ and g by tanh of x W_hxᵀ + h W_hhᵀ + b, c' = f∘c + i∘g, h' = o∘tanh(c'); W_hx (4H, n),
          W_hh (4H, H), b (4H,), the gates in the order i, f, g, o. S = 2H: h, then c.

        ``state`` (B, S) is the first state of each row, zeros if None. Of row b the first ``lengths[b]`` steps are
        computed (all if ``lengths`` is None); the others are 0 in the result. If ``reverse``, a row is run from its
        last step to its first; each result keeps the position of its step. ``activations`` replace the σ of "gru" and
        "lstm" by that of the gates, the tanh of c and g by that of the candidate, and tanh(c') by that of the cell.
        """

    @abstractmethod
    def recurrent_grad(
        self, cell: str, params: Sequence[Array], workspace: Any, dy: Array, need_dx: bool, need_dstate: bool
    ) -> tuple[Array | None, Array | None, Sequence[Array]]:
        """Return (dx (B, T, n), dstate (B, S), gradients like ``params``); the first two are None where not needed."""

    # -- conditional random fields over tags -----------------------------------------------------------------
    #
    # A sequence of n steps with the tags y has the score start[y0] + Σ x[t, yt] + Σ transitions[y(t-1), yt], and
    # P(y) = exp(score of y) / Σ exp(score of any tags). Steps after the end are ignored.

    @abstractmethod
    def crf(self, x: Array, tags: Array, transitions: Array, start: Array, train: bool) -> tuple[Array, Any]:
        """x (B, T, K), tags (B, T) integers in [0, K), -1 after the end -> (-log P(tags) (B,), workspace).

        Transitions are (K, K), from row to column, start (K,); every sequence has one step at least. By the forward
        algorithm, in log space. No workspace if not ``train``.
        """

    @abstractmethod
    def crf_grad(
        self, x: Array, tags: Array, transitions: Array, start: Array, workspace: Any
    ) -> tuple[Array, Array, Array]:
        """Return (dx, dtransitions, dstart) of the sum of the losses: expected counts minus those of the given tags."""

    @abstractmethod
    def crf_decode(self, x: Array, lengths: Array, transitions: Array, start: Array) -> Array:
        """Return the tags (B, T) int64 of the highest score, -1 after the end (Viterbi); ties go to the lower tag."""


class AttentionOps(ABC):
    """Kernels of attention from queries (B, Tq, n) to keys (B, Tk, n) and values (B, Tk, m)."""

    xp: Any

    def rotate_pairs(self, x: Array, factors: Array) -> Array:
        """Return x (B, T, n), its pairs of neighbouring features multiplied as complex numbers by factors (T, n/2)."""
        return (self.xp.ascontiguousarray(x).view(factors.dtype) * factors).view(x.dtype)

    def attention(
        self, query: Array, keys: Array, values: Array, heads: int, factor: float, visible: Array | None, train: bool
    ) -> tuple[Array, Any]:
        """Return the means (B, Tq, m) of the values by the weights of :meth:`attention_weights`, and a workspace.

        Scores are factor·Σ q·k. No workspace if not ``train``. Here all weights are in memory at once, and are the
        workspace; a backend may compute them block by block.
        """
        weights, _ = self.attention_weights(query, keys, heads, factor, visible, None)
        return self.weighted_means(weights, values), weights if train else None

    def attention_grad(
        self,
        query: Array,
        keys: Array,
        values: Array,
        y: Array,
        workspace: Any,
        dy: Array,
        heads: int,
        factor: float,
        visible: Array | None,
    ) -> tuple[Array, Array, Array]:
        """Return (dquery, dkeys, dvalues); ``y`` is the result of :meth:`attention`."""
        dweights, dvalues = self.weighted_means_grad(workspace, values, dy)
        dquery, dkeys, _ = self.attention_weights_grad(query, keys, workspace, None, dweights, factor, None)
        return dquery, dkeys, dvalues

    @abstractmethod
    def attention_weights(
        self, query: Array, keys: Array, heads: int, factor: float, visible: Array | None, score: Array | None
    ) -> tuple[Array, Any]:
        """Return the softmax over keys of the scores, (B, heads, Tq, Tk), and a workspace.

        The score of a query q and a key k of one head is factor·Σ q·k, or, with the vector ``score`` (n,), Σ
        score·tanh(q + k). ``visible`` (B, Tq), integers in host memory, says how many keys, from the first one on, a
        query sees; all if None. The weights of the others are exactly 0, and so are all weights of a query that sees
        none.
        """

    @abstractmethod
    def attention_weights_grad(
        self,
        query: Array,
        keys: Array,
        weights: Array,
        workspace: Any,
        dweights: Array,
        factor: float,
        score: Array | None,
    ) -> tuple[Array, Array, Array | None]:
        """Return (dquery, dkeys, dscore), given the gradient for the weights; dscore is None without ``score``."""

    @abstractmethod
    def weighted_means(self, weights: Array, values: Array) -> Array:
        """Weights (B, heads, Tq, Tk), values (B, Tk, m) -> (B, Tq, m): Σ weight·value over the keys."""

    @abstractmethod
    def weighted_means_grad(self, weights: Array, values: Array, dy: Array) -> tuple[Array, Array]:
        """Return (dweights, dvalues)."""
