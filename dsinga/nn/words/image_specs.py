"""The forms of layers of images, and of the same layers of volumes: convolution, padding, sizes, pooling."""

from __future__ import annotations

import functools

from dsinga.nn.words.function_specs import FunctionSpec
from dsinga.nn.words.image_adapters import (
    convolve,
    convolve_depthwise,
    convolve_transposed,
    crop_images,
    pad_images,
    pool_images,
    require_images,
    upsample_images,
)

KERNEL = {"weight": "kernel_initializer", "bias": "bias_initializer"}
LENGTHS = "A second source gives the lengths of the sequences"


def poolings(name: str, pool: str, what: str, note: str = "") -> dict[str, FunctionSpec]:
    """Return the forms of the layers that pool windows, or all, of images and of sequences by one method."""
    window, every, fixed = "``strides`` are ``pool_size`` by default, as in Keras.", "global_pooling", {"pool": pool}
    return {
        f"{name}Pooling2D": FunctionSpec(
            "kPooling",
            "pool_size strides padding",
            {"strides": None},
            fixed,
            details=functools.partial(pool_images, pool=pool),
            doc=f"{what} of each window of images (kPooling); {window}{note}",
        ),
        f"{name}Pooling3D": FunctionSpec(
            "kPooling",
            "pool_size strides padding",
            {"strides": None},
            fixed,
            details=functools.partial(pool_images, pool=pool, axes=3),
            doc=f"{what} of each window of volumes (B, C, D, H, W) (kPooling); {window}{note}",
        ),
        f"{name}Pooling1D": FunctionSpec(
            "kPooling1D",
            "pool_size=kernel strides=stride",
            {"pool_size": 2, "strides": None},
            fixed,
            doc=f"{what} of each window of steps before the end of a sequence (kPooling1D); {window}",
        ),
        f"Global{name}Pooling2D": FunctionSpec(
            "kPooling",
            "",
            fixed={**fixed, every: True},
            details=require_images,
            flat=True,
            doc=f"{what} of each channel of images (kPooling): (B, C).",
        ),
        f"Global{name}Pooling3D": FunctionSpec(
            "kPooling",
            "",
            fixed={**fixed, every: True},
            details=functools.partial(require_images, axes=3),
            flat=True,
            doc=f"{what} of each channel of volumes (kPooling): (B, C).",
        ),
        f"Global{name}Pooling1D": FunctionSpec(
            "kPooling1D",
            "",
            fixed=fixed,
            doc=f"{what} of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n).\n\n"
            f"{LENGTHS}; without it they have all T steps.",
        ),
    }


DEPTHWISE = FunctionSpec(
    "kConvolution",
    "kernel_size strides padding depth_multiplier dilation_rate activation use_bias=bias_term depthwise_initializer "
    "bias_initializer depthwise_regularizer bias_regularizer",
    fixed={"num_filters": 1},  # until the channels of the source are known
    inits={"weight": "depthwise_initializer", "bias": "bias_initializer"},
    details=convolve_depthwise,
    doc="Depthwise convolution of images, and its activation (kConvolution, a group for each channel): each channel "
    "has ``depth_multiplier`` filters of its own, (B, C, H, W) to (B, depth_multiplier·C, H', W').",
)


def of_axes(what: str, axes: int, linear: str) -> dict[str, FunctionSpec]:
    """Return the forms of layers of images or volumes, which have ``axes``; ``linear`` is an interpolation's name."""
    size, conv = f"{axes}D", "activation use_bias=bias_term kernel_initializer bias_initializer kernel_regularizer"
    pad, crop, upsample, transpose, convolve_fields = (
        functools.partial(function, axes=axes)
        for function in (pad_images, crop_images, upsample_images, convolve_transposed, convolve)
    )
    return {
        f"Padding{size}": FunctionSpec(
            "kPadding",
            "padding padding_mode",
            {"padding": 1},
            details=pad,
            doc=f"{what} with pixels added on every side (kPadding): zeros, the edge, a mirror image, or the opposite "
            "side.",
        ),
        f"ZeroPadding{size}": FunctionSpec(
            "kPadding",
            "padding",
            {"padding": 1},
            details=pad,
            doc=f"{what} with ``padding`` pixels of zeros on every side (kPadding).",
        ),
        f"Cropping{size}": FunctionSpec(
            "kCropping",
            "cropping",
            {"cropping": 0},
            details=crop,
            doc=f"{what} without their outermost pixels (kCropping).",
        ),
        f"UpSampling{size}": FunctionSpec(
            "kUpsampling",
            "size interpolation=method",
            {"size": 2, "interpolation": "nearest"},
            words={"interpolation": {"nearest": None, linear: "kLinear"}},
            details=upsample,
            doc=f"{what} with ``size`` times as many pixels, repeated or interpolated (kUpsampling).",
        ),
        f"Conv{size}Transpose": FunctionSpec(
            "kTransposedConvolution",
            f"filters=num_filters kernel_size strides padding output_padding {conv} bias_regularizer",
            inits=KERNEL,
            details=transpose,
            doc=f"Transposed convolution of {what.lower()}, and its activation (kTransposedConvolution): "
            f"{what.lower()} become ``strides`` times as large.\n\n"
            "As a number ``padding`` says how many pixels of the result are left out on each side.",
        ),
        f"Conv{size}": FunctionSpec(
            "kConvolution",
            f"filters=num_filters kernel_size strides padding {conv} bias_regularizer dilation_rate groups=group",
            inits=KERNEL,
            details=convolve_fields,
            doc="" if axes == 2 else "Convolution of volumes (B, C, D, H, W), and its activation (kConvolution).",
        ),
        f"SpatialDropout{size}": FunctionSpec(
            "kDropout", "rate=dropout_ratio", fixed={"unit": "kChannel"}, required=("rate",)
        ),
    }
