"""A table of cases in which another implementation is faster than oneDNN's first choice.

``DSINGA_ONEDNN=plain`` in the environment disables it. A row stays if it saves 3% of an iteration of a benchmark net.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.ops.compiled.compiler import is_available
from dsinga.ops.compiled.winograd import shares_of, winograd_loop
from dsinga.ops.layout import computes_in_blocks
from dsinga.ops.onednn import kernel_gradient
from dsinga.ops.onednn.library import AVX512_CORE, Unsupported, get_instructions
from dsinga.ops.onednn.primitive import LANES
from dsinga.ops.onednn.thread import get_kernel, thread_state
from dsinga.ops.types import Shape, Sizes

VARIABLE = "DSINGA_ONEDNN"
NONE = "none"  # the library's implementation where it has none
ANY = "any"  # whichever implementation the library has
SMALL_ARRAY = 1 << 14  # numbers
LEAST_MULTIPLICATIONS = 1 << 17  # of an image, for each of the nine numbers of a kernel


class Choice(NamedTuple):
    """A row of the table: the implementation that replaces oneDNN's for some arguments of a kernel.

    ``implementation``, a ``module.Class`` of this package, replaces ``instead_of`` if ``when`` is true of the kernel's
    arguments. ``measured`` has processor, date and the share of the time.
    """

    name: str
    kernel: str
    instead_of: str
    when: Callable[..., bool]
    implementation: str
    measured: str


def needs_masks(x: Shape, w: Shape, stride: Sizes, pad: Sizes) -> bool:
    """Whether images have few channels, not a multiple of LANES, so that the last register is masked."""
    return len(x) == 4 and 5 <= x[1] < 24 and x[1] % LANES != 0


def has_partial_registers(x: Shape, w: Shape, *arguments: Any) -> bool:
    """Whether images or filters of 8 channels or more do not fill AVX-512 registers."""
    return len(x) == 4 and min(w[:2]) >= LANES and any(channels % (2 * LANES) for channels in w[:2])


def is_wide(x: Shape, w: Shape, stride: Sizes, pad: Sizes) -> bool:
    """Whether a row of the kernel is wide enough for a product to be worth a call of the library."""
    return len(x) == 4 and w[3] * w[1] >= 48 and kernel_gradient.multiplications(x, w, stride, pad) >= 800_000


def has_wide_loops() -> bool:
    """Whether loops for processors with AVX-512, such as Winograd's, are compiled in this process."""
    return is_available() and get_instructions() & AVX512_CORE == AVX512_CORE


def suits_winograd(x: Shape, w: Shape, stride: Sizes, pad: Sizes, bias: bool = False) -> bool:
    """Whether Winograd's loops pay: 3 x 3 kernels in a core's cache, full registers, results of 8 x 8 or more.

    Images need so many multiplications that small nets do not compile the loops. The batch size does not count.
    """
    fits = len(x) == 4 and w[2:] == (3, 3) and stride == (1, 1) and max(pad) <= 2 and min(x[2:]) + 2 * min(pad) >= 10
    pays = fits and not (w[0] % 16 or w[1] % 16) and LEAST_MULTIPLICATIONS <= w[0] * w[1] * x[2] * x[3]
    return pays and w[0] * w[1] <= 1 << 16 and has_wide_loops() and winograd_loop() is not None


def suits_winograd_in_shares(x: Shape, w: Shape, stride: Sizes, pad: Sizes) -> bool:
    """Whether Winograd's loops pay for the gradient for kernels, which has few shares of a batch."""
    return suits_winograd(x, w, stride, pad) and thread_state.team.size <= shares_of(*w[:2])


def fills_no_registers(rows: int, outputs: int, inputs: int) -> bool:
    """Whether a product's rows leave registers partly empty, or need too many."""
    return rows not in range(LANES, 4 * LANES + 1, LANES)


def has_many_rows(rows: int, outputs: int, inputs: int) -> bool:
    """Whether a weight is smaller than the features that TransposedProduct would copy to another layout."""
    return outputs * inputs < rows * (outputs + inputs)


def is_small_product(rows: int, outputs: int, inputs: int) -> bool:
    """Whether a product is so small that a kernel for its shapes beats ``sgemm``, with its bits."""
    return min(rows, outputs, inputs) > 1 and max(rows, outputs, inputs) <= 256


def is_small_layer(rows: int, outputs: int, inputs: int) -> bool:
    """Whether a small product with a bias has the bits of ``sgemm``, which adds the bias of few rows first."""
    return is_small_product(rows, outputs, inputs) and (rows >= 16 or not has_many_rows(rows, outputs, inputs))


def is_written_in_order(rows: int, outputs: int, inputs: int) -> bool:
    """Whether a product beats its transpose: a weight in the caches, or too few or too many rows to write it apart."""
    return outputs * inputs < 1 << 17 or not 8 <= rows <= 64


def writes_far_apart(rows: int, outputs: int, inputs: int) -> bool:
    """Whether writing a weight's gradient dominates its product: one thread, a large weight, few rows."""
    is_large = outputs * inputs > 1 << 20
    return is_large and thread_state.team.size == 1 and 8 <= rows < 128 and rows * inputs <= 1 << 18


def is_of_images(x: Shape, w: Shape, stride: Sizes, pad: Sizes) -> bool:
    """Whether a convolution is 2-d, on images, not on volumes."""
    return len(x) == 4


def is_depthwise(x: Shape, w: Shape, stride: Sizes, pad: Sizes, dtype: Any, dilation: Sizes, groups: int) -> bool:
    """Whether each channel of images has filters of its own, without gaps, no larger than the images."""
    return len(x) == 4 and w[1] == 1 and max(dilation) == 1 and w[2] <= x[2] and w[3] <= x[3]


def is_small(size: int, *arguments: Any) -> bool:
    """Whether an array is so small that numpy beats the library's call."""
    return size <= SMALL_ARRAY


def has_few_classes(points: int, classes: int) -> bool:
    """Whether rows of a softmax are so short that their overhead dominates."""
    return classes < 16


def always(*arguments: Any) -> bool:
    """Apply a row of the table to all arguments of its kernel."""
    return True


# fmt: off
TABLE = (
    Choice("padded-channels", "convolution_grad_x", "brg_fwd:avx2+brgconv:avx2", needs_masks,
        "convolution.PaddedBackwardData", "Xeon with AVX2, 2026-11-22: mnist-convnet 0.96"),
    Choice("direct-convolution", "convolution", "brgconv:avx512_core", has_partial_registers,
        "convolution.DirectForward",
        "EPYC with AVX-512, 2026-11-26: 0.95 of the kernel's time, the median of 27 random shapes; mnist-convnet 0.89"),
    Choice("direct-gradient", "convolution_grad_x", "brg_fwd:avx512_core+brgconv:avx512_core", has_partial_registers,
        "convolution.DirectBackwardData",
        "EPYC with AVX-512, 2026-11-26: 0.91 of the kernel's time, the median of 24 random shapes; mnist-convnet 0.89"),
    Choice("winograd", "convolution", "brgconv:avx512_core", suits_winograd, "winograd.WinogradForward",
        "EPYC with AVX-512, 2026-11-30: 0.54 to 0.8 of the time; resnet 0.77 of an iteration, with the gradients"),
    Choice("winograd-gradient", "convolution_grad_x", "brg_fwd:avx512_core+brgconv:avx512_core", suits_winograd,
        "winograd.WinogradBackwardData", "EPYC with AVX-512, 2026-11-30: 0.54 to 0.8 of the time"),
    Choice("winograd-kernel-gradient", "convolution_grad_w", "jit:avx512_core", suits_winograd_in_shares,
        "winograd.WinogradBackwardWeights", "EPYC with AVX-512, 2026-11-30: 0.51 to 0.85 of the time"),
    Choice("direct-gradient-with-strides", "convolution_grad_x", "brgconv_strided:avx512_core", is_of_images,
        "convolution.DirectBackwardData",
        "EPYC with AVX-512, 2026-11-26: 0.78 of the kernel's time, median of 17 random shapes; resnet 0.39 to 0.77"),
    Choice("kernel-gradient-by-products", "convolution_grad_w", "jit:avx2", is_wide, "kernel_gradient.KernelGradient",
        "EPYC, 2026-11: AlexNet's kernels 0.67 to 0.91, cifar10-64 0.85; Xeon with AVX2, 2026-11-22: cifar10-64 1.04"),
    Choice("kernel-gradient-without-im2col", "convolution_grad_w", "x64:gemm:jit", is_of_images,
        "kernel_gradient.KernelGradient", "EPYC, 2026-11: 0.33 of the kernel's time"),
    Choice("depthwise-kernel-gradient", "grouped_convolution_grad_w", "jit:avx512_core", is_depthwise,
        "convolution.NarrowBackwardWeights",
        "EPYC with AVX-512, 2026-11-30: kernels of 7 x 7 pixels 0.57 to 0.72 of the time, 5 x 5 0.82"),
    Choice("small-tanh", "tanh", ANY, is_small, "elementwise.SmallTanh",
        "EPYC, 2026-11-23: 0.11 of the kernel's time for 512 numbers, 0.46 for 16,384"),
    Choice("small-tanh-gradient", "tanh_grad", ANY, is_small, "elementwise.SmallTanhGradient",
        "EPYC, 2026-11-23: 0.25 of the kernel's time for 512 numbers, 0.58 for 16,384"),
    Choice("softmax-by-class", "point_softmax", ANY, has_few_classes, "normalisation.SoftmaxByClass",
        "Xeon with AMX, 2026-11-26: 4 classes 0.26 of the kernel's time, 8 0.61; 16 would be 1.45, 64 6.3"),
    Choice("direct-product", "inner_product", "brg:avx512_core", is_small_layer, "products.DirectProduct",
        "EPYC with AVX-512, 2026-11-28: 0.63 of the kernel's time for 64 x 64 and 2 to 256 rows, 0.9 for 256 x 256"),
    Choice("direct-source-gradient", "inner_product_grad_x", "sgemm:avx512_core", is_small_product,
        "products.direct_source_gradient",
        "EPYC with AVX-512, 2026-11-28: 0.58 to 0.74 of the time for 64 x 64, 0.9 for 256 x 256"),
    Choice("direct-weight-gradient", "inner_product_grad_w", "sgemm:avx512_core", is_small_product,
        "products.direct_weight_gradient",
        "EPYC with AVX-512, 2026-11-28: 0.65 to 0.84 of the time for 64 x 64, 0.9 for 256 x 256"),
    Choice("inner-product-by-sgemm", "inner_product", "gemm:jit:f32", fills_no_registers, "products.SgemmProduct",
        "EPYC, 2026-11: 0.73 of the kernel's time, the median of 2,500 random shapes"),
    Choice("inner-product-of-many-rows", "inner_product", "brg:avx512_core", has_many_rows, "products.SgemmProduct",
        "EPYC, 2026-11-23: steps of sequences, 2048 x 256 to 256 or 512: 0.60 and 0.55 of the kernel's time"),
    Choice("direct-product-of-rows", "inner_product_of_rows", "brg:avx512_core", is_written_in_order,
        "products.DirectProduct",
        "EPYC with AVX-512, 2026-11-30: 14 shapes: 1 to 7 rows 0.47 to 0.95 of the kernel's time, more 0.16 to 1.0"),
    Choice("weight-gradient-by-blocks", "inner_product_grad_w", "sgemm:avx512_core", writes_far_apart,
        "products.WeightGradientByBlocks",
        "Xeon with AVX-512, 2026-11-24: mnist-mlp 0.80 of an iteration, mnist-mlp-two 0.83; EPYC, 2026-11-30: MLP of "
        "12 million params 0.92, in 4 blocks, whose gradients are added by parts, 0.80"),
    Choice("attention-in-blocks", "attention", NONE, computes_in_blocks, "recurrent.attend_in_blocks",
        "Xeon with AMX, 2026-11-25: causal, forward and backward: 512 keys 1.0 of the time, 1024 0.72, 2048 0.71"),
    Choice("lrn-by-shifted-sums", "lrn", NONE, always, "normalisation.ShiftedSums",
        "EPYC, 2026-11: 0.29 of numpy's time forward, 0.18 backward; Xeon with AVX2, 2026-11-22: cifar10-64 0.92"),
)
# fmt: on
"""All special cases; the first applicable row wins."""


def choose(kernel: str, implementation: str, *arguments: Any) -> Choice | None:
    """Find the row of the table that applies to a kernel's arguments, or None."""
    for choice in _rows(kernel):
        if choice.instead_of in (implementation, ANY) and choice.name not in switched_off() and choice.when(*arguments):
            return choice
    return None


def choose_kernel(kernel: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Make a kernel for the calling thread: oneDNN's ``make(*arguments)``, or the table's replacement."""
    return get_kernel(_make, kernel, make, *arguments)


def _make(kernel: str, make: Callable[..., Any], *arguments: Any) -> Any:
    try:
        default = make(*arguments)
        choice = choose(kernel, default.implementation, *arguments)
    except Unsupported:
        choice = choose(kernel, NONE, *arguments)
        if choice is None:
            raise
    if choice is None:
        return default
    return resolve(choice.implementation)(*arguments)


@cache
def resolve(name: str) -> Any:
    """Import ``module.Class`` of this package by name."""
    module, _, attribute = name.partition(".")
    return getattr(import_module(f"dsinga.ops.onednn.{module}"), attribute)


@cache
def _rows(kernel: str) -> tuple[Choice, ...]:
    return tuple(choice for choice in TABLE if choice.kernel == kernel)


@cache
def switched_off() -> frozenset[str]:
    """Return which rows of the table the environment variable disables."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "plain"):
        raise UserError(f"{VARIABLE}={value!r} is unknown: leave it unset, or set it to 'plain'")
    return frozenset(choice.name for choice in TABLE) if value else frozenset()
