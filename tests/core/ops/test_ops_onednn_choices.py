"""The oneDNN backend's table of choices: its names exist, one place reads it, the environment switches it off."""

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.ops.block_sums import add_gradients
from tests.core.ops.test_ops_onednn import new_thread as new_thread
from tests.support.cpu_instructions import AVX2, AVX512, HAS_AVX512
from tests.support.refusals import refused

try:
    from dsinga.ops.onednn import choices, convolution, library, products
    from dsinga.ops.onednn.choices import ANY, NONE, TABLE, choose, choose_kernel, resolve, switched_off
    from dsinga.ops.onednn.library import Handle, dense, engine, free, image, strided
    from dsinga.ops.onednn.onednn_ops import OnednnOps
    from dsinga.ops.onednn.primitive import attributes, implementation_of
    from dsinga.ops.onednn.thread import thread_state
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)

GEOMETRIES = [  # images, kernel, stride, pad: between them oneDNN has all implementations that the table names
    ((64, 32, 16, 16), (64, 32, 1, 1), 1, 0),
    ((64, 16, 32, 32), (32, 16, 1, 1), 2, 0),
    ((64, 16, 32, 32), (32, 16, 3, 3), 2, 1),
    ((64, 20, 12, 12), (50, 20, 5, 5), 1, 0),
    ((64, 16, 32, 32), (16, 16, 3, 3), 1, 1),
]
DEPTHWISE = (2, 32, 9, 9), (32, 1, 7, 7), (1, 1), (3, 3), library.FLOAT32, (1, 1), 32
BY_NAME = {choice.name: choice for choice in TABLE}


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    """The table as it is for one thread and without an environment variable, before the test and after it."""
    monkeypatch.delenv(choices.VARIABLE, raising=False)
    monkeypatch.setattr(thread_state.team, "size", 1)
    switched_off.cache_clear()
    yield
    switched_off.cache_clear()


def implementations(function: str, *arguments) -> set[str]:
    """All implementations that the library has for a primitive."""
    description = Handle("primitive_desc", f"{function}_primitive_desc_create", *arguments, attributes())
    names = {implementation_of(description)}
    while not library.lib.dnnl_primitive_desc_next_impl(description):
        names.add(implementation_of(description))
    return names


def library_names(kernel: str) -> set[str]:
    """The implementations that the library has of a kernel in the table, for the shapes above."""
    if kernel in ("inner_product", "inner_product_of_rows"):
        arguments = engine, dense((40, 30)), strided((30, 20), (1, 30)), None, dense((40, 20))
        return implementations("matmul", *arguments)
    if kernel in ("inner_product_grad_w", "inner_product_grad_x"):
        return {"sgemm:avx512_core", "sgemm:avx2"}
    if kernel == "grouped_convolution_grad_w":
        return {convolution.BackwardWeights(*DEPTHWISE).implementation}
    names = set()
    for x, w, stride, pad in GEOMETRIES:
        shapes = x, w, (stride, stride), (pad, pad)
        forward, geometry = convolution.forward_of(*shapes), convolution.geometry_of(*shapes[2:])
        y, algorithm = image(forward.output_shape), library.CONVOLUTION
        before, after = (image(x), free(w), None, y, *geometry), (*geometry, forward.convolve.description)
        kinds = {
            "convolution": ("convolution_forward", engine, library.TRAINING, algorithm, *before),
            "convolution_grad_x": ("convolution_backward_data", engine, algorithm, image(x), free(w), y, *after),
            "convolution_grad_w": ("convolution_backward_weights", engine, algorithm, *before[:4], *after),
        }
        names |= implementations(*kinds[kernel])
    return names


@AVX2
@pytest.mark.parametrize("name", BY_NAME)
def test_every_name_of_the_table_exists(name):
    choice = BY_NAME[name]
    assert callable(resolve(choice.implementation))
    if HAS_AVX512 or not choice.instead_of.endswith("avx512_core"):
        assert choice.instead_of in (NONE, ANY) or choice.instead_of in library_names(choice.kernel)
    assert choice.measured


BRGCONV_512, STRIDED = "brg_fwd:avx512_core+brgconv:avx512_core", "brgconv_strided:avx512_core"
BRGCONV, WIDE = "brg_fwd:avx2+brgconv:avx2", ((16, 256, 13, 13), (384, 256, 3, 3))
SMALL = (1, 3, 4, 4), (8, 3, 5, 5)
THREES, DEEP = ((64, 16, 32, 32), (32, 16, 3, 3)), ((64, 64, 8, 8), (64, 64, 3, 3))


@pytest.mark.parametrize(
    ("kernel", "implementation", "arguments", "row"),
    [
        ("convolution_grad_w", "jit:avx2", (*WIDE, (1, 1), (1, 1)), "kernel-gradient-by-products"),
        ("convolution_grad_w", "brgconv:avx512_core", (*WIDE, (1, 1), (1, 1)), None),
        ("convolution_grad_w", "jit:avx2", ((64, 32, 15, 15), (32, 32, 1, 1), (1, 1), (0, 0)), None),
        ("convolution_grad_w", "jit:avx2", ((64, 3, 32, 32), (32, 3, 5, 5), (1, 1), (2, 2)), None),
        ("convolution_grad_w", "jit:avx2", ((1, 32, 15, 15), (32, 32, 5, 5), (1, 1), (2, 2)), None),
        ("convolution_grad_w", "x64:gemm:jit", (*SMALL, (1, 1), (2, 2)), "kernel-gradient-without-im2col"),
        ("convolution_grad_x", BRGCONV, ((3, 20, 6, 8), (6, 20, 5, 5), (1, 1), (2, 2)), "padded-channels"),
        ("convolution_grad_x", BRGCONV, ((3, 24, 6, 8), (9, 24, 3, 3), (1, 1), (1, 1)), None),
        ("convolution_grad_x", BRGCONV, ((3, 25, 6, 8), (9, 25, 3, 3), (1, 1), (1, 1)), None),
        ("convolution", "brgconv:avx512_core", (*GEOMETRIES[3][:2], (1, 1), (0, 0), True), "direct-convolution"),
        ("convolution", "brgconv:avx512_core", (*WIDE, (1, 1), (1, 1), True), None),
        ("convolution", "brgconv:avx512_core", ((64, 3, 32, 32), (20, 3, 3, 3), (1, 1), (1, 1), True), None),
        ("convolution_grad_x", BRGCONV_512, ((64, 32, 7, 7), (50, 32, 5, 5), (1, 1), (2, 2)), "direct-gradient"),
        ("convolution_grad_x", BRGCONV_512, (*WIDE, (1, 1), (1, 1)), None),
        ("convolution", "brgconv:avx512_core", (*THREES, (1, 1), (1, 1), True), "winograd"),
        ("convolution", "brgconv:avx512_core", ((64, 16, 6, 7), THREES[1], (1, 1), (1, 1)), None),
        ("convolution", "brgconv:avx512_core", (*THREES, (1, 1), (3, 1)), None),
        ("convolution_grad_x", BRGCONV_512, (*THREES, (1, 1), (0, 0)), "winograd-gradient"),
        ("convolution_grad_w", "jit:avx512_core", (*DEEP, (1, 1), (1, 1)), "winograd-kernel-gradient"),
        ("convolution_grad_w", "jit:avx512_core", (*DEEP, (2, 2), (1, 1)), None),
        ("convolution_grad_x", STRIDED, (*WIDE, (2, 2), (1, 1)), "direct-gradient-with-strides"),
        ("convolution_grad_x", STRIDED, ((1, 2, 4, 4, 4), (3, 2, 3, 3, 3), (2, 2, 2), (1, 1, 1)), None),
        ("inner_product", "gemm:jit:f32", (20, 140, 130), "inner-product-by-sgemm"),
        ("inner_product", "gemm:jit:f32", (16, 140, 130), None),
        ("inner_product", "brg:avx512_core", (67, 140, 300), None),
        ("inner_product", "brg:avx512_core", (300, 140, 130), "inner-product-of-many-rows"),
        ("inner_product", "brg:avx512_core", (64, 65, 65), "direct-product"),
        ("inner_product_of_rows", "brg:avx512_core", (7, 2000, 2500), "direct-product-of-rows"),
        ("inner_product_of_rows", "brg:avx512_core", (64, 2000, 2500), None),
        ("inner_product_grad_w", "sgemm:avx512_core", (64, 2000, 2500), "weight-gradient-by-blocks"),
        ("inner_product_grad_w", "sgemm:avx512_core", (7, 2000, 2500), None),
        ("inner_product_grad_w", "sgemm:avx512_core", (128, 2000, 1000), None),
        ("inner_product_grad_w", "sgemm:avx512_core", (64, 2000, 4097), None),
        ("inner_product_grad_w", "sgemm:avx512_core", (64, 500, 800), None),
        ("inner_product_grad_w", "sgemm:avx512_core", (8, 32768, 64), "weight-gradient-by-blocks"),
        ("inner_product_grad_w", "sgemm:avx2", (64, 2000, 2500), None),
        ("grouped_convolution_grad_w", "jit:avx512_core", DEPTHWISE, "depthwise-kernel-gradient"),
        ("tanh", "jit:avx2", (16_384, 1.0, 1.0), "small-tanh"),
        ("tanh", "jit:avx2", (16_385, 1.0, 1.0), None),
        ("tanh_grad", "jit:avx2", (16_384, 1.0, 1.0), "small-tanh-gradient"),
        ("point_softmax", "jit:avx512_core", (100, 15), "softmax-by-class"),
        ("point_softmax", "jit:avx512_core", (100, 16), None),
        ("lrn", NONE, ((2, 3, 4, 4), 3, 1.0, 0.75, 1.0, True), "lrn-by-shifted-sums"),
    ],
)
def test_a_row_is_for_these_cases(kernel, implementation, arguments, row, monkeypatch):
    for name in ("is_available", "winograd_loop"):  # also without numba
        monkeypatch.setattr(choices, name, lambda: True)
    choice = choose(kernel, implementation, *arguments)
    assert (choice.name if choice else None) == row


@AVX512
@pytest.mark.parametrize(("x", "w", "stride", "pad"), GEOMETRIES)
def test_a_direct_convolution_computes_what_the_first_choice_does(x, w, stride, pad):
    rng = np.random.default_rng(0)
    shapes = (2, *x[1:]), w, (stride, stride), (pad, pad)
    for direct, first in (
        (convolution.DirectForward(*shapes), convolution.ConvolutionForward(*shapes)),
        (convolution.DirectBackwardData(*shapes), convolution.BackwardData(*shapes)),
    ):
        assert direct.implementation == convolution.DIRECT
        shape = shapes[0] if isinstance(direct, convolution.ConvolutionForward) else output_shape(*shapes)
        rows = rng.standard_normal((2, *shape[2:], shape[1]), np.float32)
        kernel = rng.standard_normal(w, np.float32)
        expected = first(rows, kernel)
        np.testing.assert_allclose(direct(rows, kernel), expected, atol=1e-5 * np.abs(expected).max())


@AVX512
def test_a_depthwise_gradient_computes_what_the_first_choice_does():
    x, dy = np.random.default_rng(0).standard_normal((2, 2, 9, 9, 32), np.float32)
    expected, dw = (
        make(*DEPTHWISE)(x, dy) for make in (convolution.BackwardWeights, convolution.NarrowBackwardWeights)
    )
    np.testing.assert_allclose(dw, expected, atol=1e-5 * np.abs(expected).max())


def output_shape(*shapes):
    """The shape of a convolution's result."""
    return convolution.forward_of(*shapes).output_shape


@pytest.mark.skipif(products.WeightGradient.implementation != "sgemm:avx512_core", reason="needs AVX-512")
@pytest.mark.parametrize("shape", [(33, 31, 40), (64, 129, 784), (127, 500, 65), (50, 64, 1)])
def test_a_gradient_of_a_weight_by_blocks_has_the_bits_of_one_product(shape, monkeypatch):
    rows, outputs, inputs = shape
    rng = np.random.default_rng(0)
    y, x = (rng.normal(size=(rows, columns)).astype(np.float32) for columns in (outputs, inputs))
    monkeypatch.setattr(products, "PART_BYTES", 4 * inputs)
    kernel, whole = products.WeightGradientByBlocks(*shape), products.WeightGradient(*shape)
    blocks = kernel(y, x)
    np.testing.assert_array_equal(blocks, whole(y, x))
    terms = [kernel.factored(y[k::3], x[k::3]) for k in range(3)]
    first, second, third = alone = [term.compute() for term in terms]
    np.testing.assert_array_equal(alone, [whole(y[k::3], x[k::3]) for k in range(3)])
    expected = first + (second + third)
    total = add_gradients(terms[0], add_gradients(*terms[1:]))
    np.testing.assert_array_equal(total.compute(), expected)
    np.testing.assert_array_equal(add_gradients(terms[0], second + third), expected)
    np.testing.assert_allclose(blocks, y.astype(np.float64).T @ x, rtol=1e-4, atol=1e-4)


def kernels_of_a_small_net() -> list[str]:
    """The names of the classes that compute kernels for which the table has rows."""
    ops = OnednnOps()
    x, w = np.ones((2, 20, 9, 9), np.float32), np.ones((6, 20, 5, 5), np.float32)
    y = ops.convolution(x, w, None, (1, 1), (2, 2))
    ops.convolution_grad(x, w, y, (1, 1), (2, 2), True, False)
    ops.lrn(x, 3, 1.0, 0.75, 1.0, True)
    ops.inner_product(np.ones((20, 30), np.float32), np.ones((40, 30), np.float32), None)
    kernels = (kernel for (make, _), kernel in thread_state.kernels.items() if make is choices._make)
    return [type(kernel).__name__ for kernel in kernels]


def test_plain_has_the_first_choice_of_the_library_everywhere(new_thread, monkeypatch):
    monkeypatch.setenv(choices.VARIABLE, "plain")
    assert switched_off() == set(BY_NAME)
    special = {choice.implementation.partition(".")[2] for choice in TABLE}
    assert not special & set(new_thread(kernels_of_a_small_net))


def test_a_row_that_is_switched_off_leaves_the_others(monkeypatch):
    monkeypatch.setattr(choices, "switched_off", lambda: {"small-tanh"})
    assert choose("tanh", "jit:avx2", 9) is None
    assert choose("lrn", NONE) is BY_NAME["lrn-by-shifted-sums"]


def test_an_unknown_value_of_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv(choices.VARIABLE, "plian")
    refused(lambda: choose("lrn", NONE), "'plian'", "leave it unset")


def test_a_kernel_is_made_once_by_each_thread(new_thread):
    shapes = (2, 4, 5, 5), (3, 4, 3, 3), (1, 1), (0, 0)

    def twice() -> bool:
        return choose_kernel("convolution_grad_x", convolution.BackwardData, *shapes) is choose_kernel(
            "convolution_grad_x", convolution.BackwardData, *shapes
        )

    assert new_thread(twice)
