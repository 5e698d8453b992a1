"""The oneDNN backend: its kernels, threads and sums, and a missing library."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.ops.interface import NumpyOps
from tests.support.cpu_instructions import AVX512
from tests.support.refusals import refused

try:
    from dsinga.ops.onednn import convolution, library, normalisation, pooling, products, thread
    from dsinga.ops.onednn.onednn_ops import OnednnOps
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)

onednn = OnednnOps()

IN, OUT = (64, 3, 32, 32), (64, 32, 32, 32)


@pytest.fixture
def new_thread():
    """A thread that has made no kernels."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda *call: pool.submit(*call).result(60)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (convolution.ConvolutionForward, (IN, (32, 3, 5, 5), (1, 1), (2, 2), True)),
        (convolution.BackwardWeights, (IN, (32, 3, 5, 5), (1, 1), (2, 2))),
        (convolution.BackwardData, (OUT, (64, 32, 5, 5), (1, 1), (2, 2))),
        (pooling.PoolingForward, (library.MAX_POOLING, OUT, (3, 3), (2, 2), (0, 0), True)),
        (pooling.PoolingBackward, (library.AVG_POOLING, OUT, (3, 3), (2, 2), (0, 0))),
        pytest.param(normalisation.LRNForward, (OUT, 3, 5e-5, 0.75, 1.0, True), marks=AVX512),
        pytest.param(normalisation.LRNBackward, (OUT, 5, 1e-4, 0.75, 1.0), marks=AVX512),
    ],
)
def test_the_library_has_the_kernels_of_image_nets(make, arguments):
    assert thread.get_kernel(make, *arguments) is not None
    assert thread.get_kernel(make, *arguments) is thread.get_kernel(make, *arguments)


def test_numpy_computes_what_the_library_does_not_support():
    x = np.ones((2, 3, 4, 4), np.float32)
    assert isinstance(onednn.lrn(x.astype(np.float64), 4, 1.0, 0.75, 1.0, True)[1], np.ndarray)
    assert isinstance(onednn.lrn(x, 4, 1.0, 0.75, 1.0, True)[1], normalisation.Workspace)
    assert onednn.convolution(x.astype(np.float64), np.ones((1, 3, 1, 1)), None, (1, 1), (0, 0)).dtype == np.float64
    assert isinstance(onednn, NumpyOps)


@pytest.mark.parametrize("mean", [0.5, 7, 9, 300])
def test_sums_of_many_numbers_far_from_0_keep_their_digits(mean):
    """The library's own sums of as many numbers with a mean of 30 are 2e-4 off, and their variance 2e-5 of itself."""
    x = np.random.default_rng(1).normal(mean, 1, (20, 48, 32, 16)).astype(np.float32).transpose(0, 3, 1, 2)
    dy = x - (mean - 1)
    moments = onednn.channel_moments(x)
    exact = NumpyOps().channel_moments(x.astype(np.float64))
    np.testing.assert_allclose(moments[0], exact[0], rtol=1e-7)
    np.testing.assert_allclose(moments[1], exact[1], rtol=3e-6)
    sums, expected_sums = (ops.batch_norm_sums(x, dy, *exact, 1e-5) for ops in (onednn, NumpyOps()))
    for array, expected in zip(sums, expected_sums, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5)


@pytest.mark.parametrize("channels", [3, 16, 300])
def test_a_rectified_normalisation_equals_its_steps(channels):
    rng = np.random.default_rng(1)
    x, other = rng.normal(0, 1, (2, 6, 5, 7, channels)).astype(np.float32).transpose(0, 1, 4, 2, 3)
    scale, shift = rng.normal(0, 1, (2, channels)).astype(np.float32)
    affine = onednn.channel_affine(x, scale, shift)
    np.testing.assert_array_equal(onednn.rectified_affine(x, scale, shift), onednn.relu(affine))
    y, expected = onednn.rectified_affine(x, scale, shift, other), onednn.relu(onednn.add(affine, other))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)
    assert y.strides == expected.strides


def test_a_thread_keeps_a_bounded_number_of_kernels(new_thread, monkeypatch):
    monkeypatch.setattr(thread, "KERNELS", 3)

    def many() -> tuple[int, list[np.ndarray]]:
        results = [onednn.relu(np.full(size, 2.0, np.float32)) for size in range(1, 10)]
        return len(thread.thread_state.kernels), results

    count, results = new_thread(many)
    assert count == 3
    assert all((result == 2).all() for result in results)


def test_kernels_are_made_anew_for_another_number_of_cores(new_thread):
    def counts() -> list[int]:
        numbers = []
        for cores in (1, 1, 2):
            onednn.set_threads(cores)
            numbers.append(len(thread.thread_state.kernels))
            onednn.relu(np.ones(3, np.float32))
        return numbers

    assert new_thread(counts) == [0, 1, 0]


def test_each_thread_has_its_own_number_of_cores(new_thread):
    count = library.get_omp_threads()
    large = np.ones(100_000, np.float32)
    new_thread(onednn.set_threads, count + 1)
    new_thread(onednn.relu, large)
    assert new_thread(library.get_omp_threads) == count + 1
    onednn.relu(large)
    assert library.get_omp_threads() == count


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def convolve(batch: int) -> list[np.ndarray]:
    x, w, b = normal(batch, 16, 8, 8), normal(32, 16, 3, 3), normal(32)
    return [onednn.convolution(x, w, b, (1, 1), (1, 1))]


KERNELS_OF_A_SIZE = {
    "relu": (lambda n: [onednn.relu(normal(n))], 20_000, 100_000),
    "softmax": (lambda n: [onednn.softmax(normal(n, 10))], 100, 10_000),
    "max_pool": (lambda n: [onednn.max_pool(normal(n, 16, 8, 8), (2, 2), (2, 2), (0, 0), False)[0]], 4, 128),
    "convolution": (convolve, 2, 64),
    "inner_product": (lambda n: [onednn.inner_product(normal(n, 64), normal(32, 64), None)], 256, 2_048),
    "sgemm": (
        lambda n: list(onednn.inner_product_grad(normal(n, 64), normal(32, 64), normal(n, 32), False, True, False)[:2]),
        256,
        2_048,
    ),
}


@pytest.mark.parametrize("kind", KERNELS_OF_A_SIZE)
def test_a_small_kernel_runs_in_one_thread_and_a_large_one_in_all(new_thread, kind):
    run, small, large = KERNELS_OF_A_SIZE[kind]

    def threads_and_results(count: int) -> tuple[list[int], list[np.ndarray]]:
        onednn.set_threads(count)
        used, results = [], []
        for size in (small, large, small):
            results += run(size)
            used.append(library.get_omp_threads())
        return used, results

    threads_of_one, results_of_one = new_thread(threads_and_results, 1)
    threads_of_two, results_of_two = new_thread(threads_and_results, 2)
    assert (threads_of_one, threads_of_two) == ([1, 1, 1], [1, 2, 1])
    third = len(results_of_one) // 3
    small_results = results_of_one[:third], results_of_two[2 * third :], results_of_two[:third]
    for expected, last, first in zip(*small_results, strict=True):
        np.testing.assert_array_equal(expected, last)
        np.testing.assert_array_equal(expected, first)
    for result, expected in zip(results_of_two, results_of_one, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * abs(expected).max())


def test_a_missing_library_is_one_clear_sentence():
    refused(lambda: library.load_library(["/nowhere/libdnnl.so.3"]), "'onednn'", "pip install onednn-cpu-gomp")


@AVX512
@pytest.mark.parametrize("rows", [1, 2, 9, 16, 17, 64, 257])
def test_rows_of_predictions_do_not_depend_on_the_others(rows):
    ops, x, w, b = onednn.with_equal_rows(), normal(300, 700), normal(40, 700), normal(40)
    weights, own = (normal(9, 70), normal(9, 9), normal(9)), normal(1, 10, 70, 1)

    def stacks(x):
        y = np.ones((len(x), 10, 1), np.float32)
        ops.batched_product(x.transpose(1, 0, 2)[None], own, y.transpose(1, 0, 2)[None], add=True)
        return y

    def kernels(x):
        return [
            ops.inner_product(x, w, b),
            ops.inner_product(x, np.ascontiguousarray(w.T), b, transpose=True),
            ops.tanh(x, 1.5, 0.5),
            ops.recurrent("rnn", x.reshape(-1, 10, 70), weights, None, None, False, False)[0],
            stacks(x.reshape(-1, 10, 70)),
        ]

    for some, every in zip(kernels(x[:rows]), kernels(x), strict=True):
        np.testing.assert_array_equal(some, every[:rows])


@pytest.mark.parametrize(("rows", "by_numpy"), [(64, True), (65, False)])
def test_products_of_small_nets_are_numpys_up_to_a_limit(rows, by_numpy, monkeypatch):
    x, w, dy = normal(rows, 64), normal(64, 64), normal(rows, 64)
    calls = []
    for name in ("product", "choose_kernel"):  # by which the library computes
        function = getattr(products, name)
        monkeypatch.setattr(products, name, lambda *given, f=function, **named: calls.append(1) or f(*given, **named))
    small = onednn.with_fast_rounding()
    y, gradients = small.inner_product(x, w, None, True), small.inner_product_grad(x, w, dy, True, False, False)
    np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(gradients[1], x.T @ dy, rtol=1e-5, atol=1e-4)
    assert bool(calls) != by_numpy
    calls.clear()
    onednn.inner_product(x, w, None, True)  # of other nets, all are the library's
    assert calls
