"""The kernel interface: what a backend must be able to do with arrays.

Every layer calls its kernels through an :class:`Ops` object. Shapes are tuples, ``B`` is the batch, images are
logically ``(B, C, H, W)``. A backend may lay an image out in memory as it likes (the CPU backends use channels-last
strides); what a caller sees is the logical shape. Arrays are float32 unless a kernel is given float64, which the
numpy backend computes in float64 (the reference for gradient checks). No kernel but ``update`` changes its arguments.

``pair`` is ``(vertical, horizontal)``: kernel, stride and pad are pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from dsinga.ops.async_copy import AsyncCopy
from dsinga.ops.types import Array, Pair
from dsinga.ops.update import Update


class Ops(ABC):
    """Array kernels of one backend, stateless for its callers: what it caches never changes a result."""

    name: str
    xp: Any
    """The module that has numpy's functions for this backend's arrays: numpy, or cupy."""

    # -- arrays ------------------------------------------------------------------------------------------------

    @abstractmethod
    def asarray(self, array: Array) -> Array:
        """Return ``array`` as this backend's array, without a copy where possible."""

    @abstractmethod
    def to_numpy(self, array: Array) -> Array:
        """Return ``array`` as a numpy array in host memory."""

    @abstractmethod
    def read(self, numbers: Sequence[Any]) -> list[float]:
        """Return numbers, and 0-d arrays of the backend, as floats, all by one copy to the host, which waits for it."""

    @abstractmethod
    def images(self, array: Array, scale: float = 1.0, mean: Array | None = None, std: Array | None = None) -> Array:
        """Return ``(array - mean) / std * scale`` as float32, for records (B, ...) of any dtype.

        ``mean`` and ``std`` are None, scalars or arrays that broadcast against one record. A 4-d result has the
        layout that this backend's convolution likes best.
        """

    @abstractmethod
    def flatten(self, x: Array) -> Array:
        """(B, C, H, W) -> (B, C·H·W) in the logical order C, H, W whatever the memory layout; a view where possible."""

    @abstractmethod
    def unflatten(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Undo :meth:`flatten`: (B, n) -> ``shape``, an image in the layout that this backend likes best."""

    @abstractmethod
    def set_threads(self, count: int) -> None:
        """Let kernels that the calling thread runs use ``count`` cores."""

    # -- workers and their device ------------------------------------------------------------------------------

    @abstractmethod
    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        """Return the backend as one worker uses it: itself on CPUs; on GPUs, one with streams of its own.

        ``device`` is the number of a GPU among those that this process sees, the first if None. ``precision`` is how
        products are computed from float32: "float32", "tf32" or "bf16" (what is stored stays float32). Raises UserError
        if the backend has no such device or precision.
        """

    @abstractmethod
    def device_count(self) -> int:
        """Return how many GPUs the backend finds in this process, 0 if it computes in host memory."""

    @abstractmethod
    def describe(self) -> str:
        """Say in one sentence what computes, and by which libraries."""

    @abstractmethod
    def lacks(self) -> str:
        """Say in one sentence which library is missing, and what runs instead of it; the empty string if none is."""

    @abstractmethod
    def enter(self) -> None:
        """Let the calling thread compute for this worker, until it enters another: call it before any kernel."""

    @abstractmethod
    def upload(self, array: Array) -> AsyncCopy:
        """Begin to copy a host array of any dtype to the device, beside its kernels; later kernels may use the result.

        The array may be changed as soon as this returns, unless the backend computes in host memory.
        """

    @abstractmethod
    def download(self, array: Array) -> AsyncCopy:
        """Begin to copy an array to host memory, behind the kernels called so far and beside later ones."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all kernels and copies of this worker have ended, as a clock must."""

    @abstractmethod
    def free_memory(self) -> int | None:
        """Return how many bytes the worker's device has left, None if the backend computes in host memory."""

    # -- inner product -----------------------------------------------------------------------------------------

    @abstractmethod
    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        """(B, I), W (O, I), or (I, O) if ``transpose``, b (O,) -> (B, O): x Wᵀ + b."""

    @abstractmethod
    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        """Return (dx (B, I), dw like w, db (O,)); dx and db are None where not needed."""

    # -- convolution and pooling -------------------------------------------------------------------------------

    @abstractmethod
    def convolution(self, x: Array, w: Array, b: Array | None, stride: Pair, pad: Pair) -> Array:
        """Cross-correlation: (B, C, H, W), w (F, C, kh, kw), b (F,) -> (B, F, H', W'), H' = (H + 2p - k)//s + 1."""

    @abstractmethod
    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Pair, pad: Pair, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        """Return (dx like x, dw like w, db (F,)); dx and db are None where not needed."""

    @abstractmethod
    def max_pool(self, x: Array, kernel: Pair, stride: Pair, pad: Pair, train: bool) -> tuple[Array, Any]:
        """(B, C, H, W) -> ((B, C, H', W'), workspace), H' by floor. Padding never wins. No workspace if not ``train``.

        A pad is smaller than its kernel, so that every window meets the image.
        """

    @abstractmethod
    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        """Return dx: each dy goes to the first maximum of its window (row-major)."""

    @abstractmethod
    def avg_pool(self, x: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        """(B, C, H, W) -> (B, C, H', W'): window sum / (kh·kw), padding counted as zeros (SINGA's kPooling)."""

    @abstractmethod
    def avg_pool_grad(self, x: Array, dy: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        """Return dx, of the shape of x."""

    # -- normalisation -----------------------------------------------------------------------------------------

    @abstractmethod
    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        """Across channels: y = x·norm^(-beta), norm = k + alpha/size · Σ x² over channels c ± size//2, clipped."""

    @abstractmethod
    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        """Return dx."""

    @abstractmethod
    def channel_sums(self, x: Array, y: Array | None = None) -> Array:
        """Sum of x, or of x·y, over all axes but axis 1: (B, C, ...) -> (C,), accumulated and returned in float64."""

    @abstractmethod
    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        """Return (mean, variance), (C,) each, of x (B, C, ...) over all axes but axis 1, in float64; 0 of nothing.

        The variance is the biased one, found about the mean: that of numbers far from 0 keeps its digits.
        """

    @abstractmethod
    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        """Return (Σ dy, Σ dy·(x - mean)/√(variance + epsilon)), (C,) each, over all axes but axis 1, in float64.

        ``mean`` and ``variance`` are float64 (C,).
        """

    @abstractmethod
    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        """factor·(dy + slope·x + shift), of the layout of x (B, C, ...); the constants are (C,) along axis 1."""

    @abstractmethod
    def batch_norm_slopes(
        self, scale: Array, mean: Array, variance: Array, sums: Sequence[Array], size: int, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Return (factor, slope, shift) for :meth:`batch_norm_grad`, by ``sums``, those over all ``size`` numbers.

        With inverse = 1/√(variance + epsilon): scale·inverse, -inverse·Σ(dy·x̂)/size, -Σdy/size - slope·mean.
        """

    @abstractmethod
    def batch_norm_affine(
        self, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
    ) -> tuple[Array, Array]:
        """Return (factor, shift) for :meth:`channel_affine`: scale/√(variance + epsilon), bias - mean·factor."""

    @abstractmethod
    def moving_average(self, running: Array, new: Array, share: float, factor: float = 1.0) -> Array:
        """(1 - share)·running + share·(factor·new), (C,) of the dtype of ``running``; ``new`` is float64."""

    @abstractmethod
    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        """x·scale + shift with scale and shift (C,) along axis 1."""

    def rectified_affine(self, x: Array, scale: Array, shift: Array, other: Array | None = None) -> Array:
        """max(x·scale + shift + other, 0): ``channel_affine``, ``add`` of what has the shape of x, and ``relu``."""
        y = self.channel_affine(x, scale, shift)
        return self.relu(y if other is None else self.add(y, other))

    @abstractmethod
    def layer_norm(self, x: Array, scale: Array, shift: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        """(R, n), scale and shift (n,) -> ((R, n), workspace): scale·(x - mean)/√(var + epsilon) + shift, row by row.

        The variance is the biased one. No workspace if not ``train``.
        """

    @abstractmethod
    def layer_norm_grad(
        self, x: Array, workspace: Any, dy: Array, scale: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Return (dx (R, n), dscale (n,), dshift (n,))."""

    # -- elementwise -------------------------------------------------------------------------------------------

    @abstractmethod
    def relu(self, x: Array, slope: float = 0.0) -> Array:
        """max(x, 0) + slope·min(x, 0)."""

    @abstractmethod
    def relu_grad(self, y: Array, dy: Array, slope: float = 0.0) -> Array:
        """Return dy where y > 0, slope·dy elsewhere; ``slope`` >= 0, so the sign of y is that of x."""

    @abstractmethod
    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), without overflow."""

    @abstractmethod
    def sigmoid_grad(self, y: Array, dy: Array) -> Array:
        """dy·y·(1 - y)."""

    @abstractmethod
    def tanh(self, x: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        """outer·tanh(inner·x); SINGA's STanh has outer 1.7159047, inner 0.66666667."""

    @abstractmethod
    def tanh_grad(self, y: Array, dy: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        """dy·inner·(outer - y²/outer)."""

    @abstractmethod
    def multiply(self, x: Array, y: Array) -> Array:
        """Elementwise product of equal shapes, in the layout of x."""

    @abstractmethod
    def add(self, x: Array, y: Array) -> Array:
        """Elementwise sum of equal shapes, in the layout of x."""

    # -- characters and words ----------------------------------------------------------------------------------

    @abstractmethod
    def one_hot(self, codes: Array, size: int) -> Array:
        """Integers (...) -> (..., size) float32: 1 in the place that the integer says, nothing but 0 where it is -1."""

    @abstractmethod
    def embedding(self, table: Array, codes: Array) -> Array:
        """Table (V, d), integers (...) -> (..., d): the rows that the integers say, zeros where one is -1."""

    @abstractmethod
    def embedding_grad(self, codes: Array, dy: Array) -> tuple[Array, Array]:
        """Return the rows of the table that have a gradient, (k,) in rising order, each once, and theirs, (k, d)."""

    # -- recurrent ---------------------------------------------------------------------------------------------

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
    ) -> tuple[Array, Array, Any]:
        """Run sequences x (B, T, n) through a recurrent cell: (B, T, H), the last state (B, S), workspace if ``train``.

        Cells, their params (the last ones, biases, may be left out together) and the width S of a state:

        - "rnn": h' = tanh(x W_hxᵀ + h W_hhᵀ + b); W_hx (H, n), W_hh (H, H), b (H,). S = H.
        - "gru", SINGA's: z = σ(x W_zxᵀ + h W_zhᵀ + b_z), r likewise, c = tanh(x W_cxᵀ + b_c + r∘(h W_chᵀ)),
          h' = z∘h + (1 - z)∘c; z_hx, r_hx, c_hx (H, n), z_hh, r_hh, c_hh (H, H), b_z, b_r, b_c (H,). S = H.
        - "lstm": i, f, o by σ and g by tanh of x W_hxᵀ + h W_hhᵀ + b, c' = f∘c + i∘g, h' = o∘tanh(c'); W_hx (4H, n),
          W_hh (4H, H), b (4H,), the gates in the order i, f, g, o. S = 2H: h, then c.

        ``state`` (B, S) is what each row begins with, zeros if None. Of row b only ``lengths[b]`` steps from the first
        on are computed (all if ``lengths`` is None); the others are 0 in the result. Where ``reverse``, a row is run
        from its last step to its first, each result staying at its step.
        """

    @abstractmethod
    def recurrent_grad(
        self, cell: str, params: Sequence[Array], workspace: Any, dy: Array, need_dx: bool, need_dstate: bool
    ) -> tuple[Array | None, Array | None, Sequence[Array]]:
        """Return (dx (B, T, n), dstate (B, S), gradients like ``params``); the first two are None where not needed."""

    # -- softmax -----------------------------------------------------------------------------------------------

    @abstractmethod
    def softmax(self, x: Array) -> Array:
        """Softmax over the last axis of (B, K)."""

    @abstractmethod
    def softmax_grad(self, y: Array, dy: Array) -> Array:
        """y·(dy - Σ dy·y)."""

    # -- sequences of tags: linear-chain conditional random fields -------------------------------------------------
    #
    # Of tags y a sequence of n steps has the score start[y0] + Σ x[t, yt] + Σ transitions[y(t-1), yt], and
    # P(y) = exp(score of y) / Σ exp(score of any tags). Steps after the end are not looked at.

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
        """Return (dx, dtransitions, dstart) of the sum of the losses: expected counts of what is used, minus own."""

    @abstractmethod
    def crf_decode(self, x: Array, lengths: Array, transitions: Array, start: Array) -> Array:
        """Return the tags (B, T) int64 of the highest score, -1 after the end (Viterbi); ties go to the lower tag."""

    # -- losses ------------------------------------------------------------------------------------------------

    @abstractmethod
    def softmax_loss(self, x: Array, labels: Array, topk: int) -> tuple[Array, Any, Any]:
        """(B, K), labels (B,) integers in [0, K) -> (p (B, K), loss, hits) with p the softmax of each row of x.

        ``loss`` is -Σ log max(p[label], FLT_MIN), summed in float64, ``hits`` is :meth:`hits` of p. Both are numbers,
        or 0-d arrays of the backend for :meth:`read`.
        """

    @abstractmethod
    def softmax_loss_grad(self, p: Array, labels: Array, factor: float) -> Array:
        """(p - 1[label])·factor: dx of ``factor`` times the loss, from the softmax."""

    @abstractmethod
    def hits(self, scores: Array, labels: Array, topk: int) -> Any:
        """For how many rows of ``scores`` (B, K) the label is among the ``topk`` highest, ties going by index.

        A number, or a 0-d array for :meth:`read`. A score that cannot be compared, NaN, counts against the label.
        """

    # -- random numbers ----------------------------------------------------------------------------------------

    @abstractmethod
    def uniform(self, key: Pair, first: int, step: int, rows: int, columns: int) -> Array:
        """(rows, columns) float32 in [0, 1): rows ``first`` to ``first + rows`` of the numbers of a key at a step.

        They are those of numpy's Philox4x64-10 in every backend, to the bit. Each row takes w = ⌈columns/8⌉ counters,
        that of the first being (first·w, 0, step, 0), and begins with a counter of its own. Both numbers of the key
        are below 2⁶⁴.
        """

    @abstractmethod
    def crop(
        self, images: Array, tops: Sequence[int], lefts: Sequence[int], mirrored: Sequence[bool], size: Pair, pad: int
    ) -> Array:
        """(B, C, H, W) of any dtype -> (B, C, *size): the window at (top, left) of each image, mirrored or not.

        The windows lie in images with ``pad`` zeros on every side. What is said of each image is in host memory.
        """

    @abstractmethod
    def bernoulli(self, p: Array, uniform: Array) -> Array:
        """1 with probability p, else 0: 1 where the uniform is below p, of the shape and dtype of p (B, n)."""

    @abstractmethod
    def dropout_mask(self, uniform: Array, ratio: float) -> Array:
        """(B, n) uniforms -> float32: 1/(1 - ratio) where the uniform is >= ratio, else 0."""

    # -- updates -----------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, updates: Sequence[Update], clip_norm: float = 0.0) -> None:
        """Change params by their gradients, each by its own formula, in place; with the bits of the formula's ufuncs.

        Unless ``clip_norm`` is 0, each gradient is first scaled down to that Euclidean norm if its own is larger and
        finite: by a float32 factor, that of a norm summed in float64.
        """
