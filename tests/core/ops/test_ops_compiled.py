"""Loops compiled by numba have the bits of the kernels and of the updaters' formulas that they replace."""

import ctypes
import logging
import operator
import shutil
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from dsinga.base import buffers
from dsinga.cluster.server.served_slice import split_update
from dsinga.job import LRGenConf, UpdaterConf, UpdaterType
from dsinga.ops import get_ops
from dsinga.ops.compiled import code_files, compiler, joined_calls
from dsinga.ops.compiled.call_records import records_of
from dsinga.ops.host_pass import HostPass
from dsinga.ops.layout import is_channels_last
from dsinga.ops.recorded_array import store_result
from dsinga.ops.recorded_checks import Deviated, FiniteCheck
from dsinga.training import create_updater
from tests.support.refusals import refused

NUMBA = pytest.mark.skipif(find_spec("numba") is None, reason="pip install numba")
CODE = pytest.mark.skipif(find_spec("numba") is None or not code_files.runs_code(), reason="no code is kept")
BF16 = pytest.mark.skipif(bool(get_ops("onednn").lacks_bf16()), reason="the processor has no bfloat16")
ELEMENTWISE = [kind for kind in UpdaterType if kind.name not in ("kUserUpdater", "kLamb", "kMuon")]
SIZE = compiler.SMALLEST + 3


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(compiler.VARIABLE, raising=False)
    compiler.is_available.cache_clear()
    yield
    compiler.is_available.cache_clear()


def normal(seed, *shape, dtype=np.float32):
    x = buffers.empty(shape, channels_last=True, dtype=dtype)
    x[...] = np.random.default_rng(seed).standard_normal(shape, np.float32)
    assert is_channels_last(x)
    return x


def computed(run, monkeypatch):
    """What a function returns with compiled loops, and without."""
    assert compiler.is_compiled(SIZE)
    results = [run()]
    monkeypatch.setenv(compiler.VARIABLE, "0")
    compiler.is_available.cache_clear()
    assert not compiler.is_compiled(SIZE)
    return [*results, run()]


@NUMBA
@pytest.mark.parametrize("shape", [(64, 16, 32, 32), (5, 24, 13, 43), (9, 300, 8, 8), (2, 7, 5, 31, 41)])
@pytest.mark.parametrize("lost", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("precision", ["float32", pytest.param("bf16", marks=BF16)])
def test_batch_normalisation_has_the_same_bits(shape, lost, precision, monkeypatch):
    ops = get_ops("onednn").for_worker(precision=precision)
    x, feature, dy = (normal(seed, *shape, dtype=ops.factor_dtype) for seed in range(3))
    dy[0, :, 0, 0] = dy[0, :, 1, 1] = lost

    def run():
        moments = ops.channel_moments(x)
        masked, sums = ops.rectified_batch_norm_sums(x, feature, dy, *moments, 1e-5)
        return *moments, masked, *(sums or ops.batch_norm_sums(x, masked, *moments, 1e-5))

    with np.errstate(invalid="ignore"):
        for compiled, plain in zip(*computed(run, monkeypatch), strict=True):
            assert compiled.dtype == plain.dtype  # numpy knows no NaN of bfloat16
            np.testing.assert_array_equal(compiled.astype(np.float64), plain.astype(np.float64))


@NUMBA
@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.parametrize("gradients", [1, 2])
def test_updates_have_the_same_bits(kind, gradients, monkeypatch):
    """Of one gradient, and of the sum of two as servers get them; some gradients are 0, infinite or no number."""
    rate = LRGenConf(type="kInverse", base_lr=0.1, inverse_conf={"gamma": 0.5, "pow": 1})
    momentum = 0.9 if kind in (UpdaterType.kSGD, UpdaterType.kNesterov) else 0.0
    clip = {"clip_low": -0.1, "clip_high": 0.1, "nan_to_zero": True, "l1": 0.1} if kind is UpdaterType.kSGD else {}
    more = {"rmsprop_conf": {"rho": 0.9}} if kind is UpdaterType.kRMSProp else {}
    conf = UpdaterConf(type=kind, learning_rate=rate, momentum=momentum, weight_decay=0.01, **clip, **more)

    def run():
        updater, rng = create_updater(conf), np.random.default_rng(0)
        value = rng.standard_normal(SIZE).astype(np.float32)
        state = updater.initial_state(value)
        for step in range(3):
            parts = [rng.standard_normal(SIZE).astype(np.float32) for _ in range(gradients)]
            parts[0][:3] = 0.0, np.inf, np.nan
            if gradients == 1:
                updater.update(step, value, parts[0], state)
            else:
                for block in split_update(updater.create_update(step, value, parts[0], state), parts, 0.5):
                    block.do()
        return value, *state.values()

    with np.errstate(all="ignore"):
        for compiled, plain in zip(*computed(run, monkeypatch), strict=True):
            np.testing.assert_array_equal(compiled, plain)


@NUMBA
def test_small_arrays_do_not_wait_for_numba():
    assert not compiler.is_compiled(compiler.SMALLEST - 1)


def test_an_unknown_value_of_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv(compiler.VARIABLE, "off")
    refused(lambda: compiler.is_compiled(SIZE), "'off'", "leave it unset")


@NUMBA
def test_a_loop_that_numba_cannot_compile_is_said(caplog):
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert compiler.load_loop("def loop(x): x.unknown", "f") is None
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "computing without compiled loops, since numba cannot compile them: Failed in"
    )


def ufunc(function, *inputs):
    return lambda out: partial(function, *inputs, out=(out,))


def reduction(function, *arguments):
    return lambda out: partial(function.reduce, *arguments, out, False)


TABLE, PLACES = np.ascontiguousarray(normal(0, 65, 3, 1, 7)[:, :, 0]), np.arange(64)[::-1].copy()
TABLE[5, 1, :4] = np.nan, np.inf, -0.0, 1
ROWS, LIST, SIGNS = TABLE[6:].reshape(59, 21), TABLE.ravel(), TABLE.ravel() > 0
CALLS = {  # by the shape and type of the result
    ((64, 3, 7), "f"): [ufunc(each, TABLE[1:], TABLE[:64]) for each in (np.add, np.divide, np.maximum)],
    ((64, 3, 7), "?"): [ufunc(each, TABLE[1:], TABLE[:64]) for each in (np.less, np.logical_and)],
    ((65, 7), "f"): [ufunc(each, TABLE[:, 0]) for each in (np.sqrt, np.tanh, np.exp, np.log, np.negative)],
    ((65, 3, 7), "f"): [ufunc(np.multiply, TABLE, each) for each in (2.5, 3, np.float32(0.1), TABLE[0])],
    ((64,), "?"): [ufunc(np.greater_equal, PLACES, 7), ufunc(np.isfinite, LIST[70:134])],
    ((21,), "f"): [reduction(each, ROWS, 0, None) for each in (np.add, np.maximum)],
    ((59,), "f"): [reduction(np.add, ROWS, -1, None)],
    ((), "f"): [reduction(each, x, None, None) for each in (np.add, np.maximum) for x in (ROWS, LIST, LIST[:9])],
    ((), "d"): [reduction(np.add, each, None, np.float64) for each in (ROWS, LIST)],
    ((), "l"): [reduction(np.add, SIGNS, None, None)],
    ((), "?"): [reduction(np.logical_or, SIGNS, None, None)],
    ((59,), "l"): [lambda out: partial(np.ndarray.argmax, ROWS, axis=1, out=out)],
    ((65,), "l"): [lambda out: partial(np.ndarray.argmax, LIST.reshape(65, 21), axis=1, out=out)],
    ((64,), "f"): [
        lambda out: partial(np.ndarray.take, LIST, PLACES * 30, mode="clip", out=out),
        lambda out: partial(store_result, [out], partial(np.zeros_like, LIST[:64])),
        lambda out: partial(store_result, [out], partial(operator.getitem, ROWS.T, (PLACES % 21, PLACES % 59))),
    ],
    ((60, 64), "f"): [lambda out: partial(operator.setitem, out, (PLACES % 60, PLACES), LIST[:64])],
    ((21, 7), "f"): [
        lambda out, each=each: partial(each, ROWS.T, TABLE[6:, 0], out=out) for each in (np.dot, np.matmul)
    ],
    ((64, 3), "f"): [
        lambda out: partial(operator.setitem, out, (slice(None), 1), 2.5),
        lambda out: partial(np.copyto, out, TABLE[1:, :, 2]),
    ],
}


@CODE
@pytest.mark.parametrize(("form", "call"), [(form, call) for form, calls in CALLS.items() for call in calls])
def test_joined_calls_have_the_bits_of_numpys(form, call):
    """Their arrays are contiguous or not, and have numbers that are not finite; a failing check is made by Python."""
    results, finite = [np.full(form[0], 2, form[1]) for _ in range(2)], FiniteCheck([np.ones(3, np.float32)])
    (joined,) = joined_calls.join_calls([call(results[0]), finite])
    with np.errstate(all="ignore"):
        joined()
        call(results[1])()
    assert results[0].tobytes() == results[1].tobytes()
    finite.vectors[0][1] = np.inf
    with pytest.raises(Deviated):
        joined()


def c_function(name, restype, *argtypes):
    function = ctypes.PyDLL(None)[name]
    function.restype, function.argtypes = restype, argtypes
    return function


LONG, MATRIX, BYTES = np.ones((3, 9000), np.float32), LIST[441:882].reshape(21, 21), np.zeros(37, np.uint8)
ODD, NUMBERS, RESULTS = BYTES[1:].view(np.float32), np.zeros(9, np.float32), np.zeros((21, 21), np.float32)
PRODUCTS = [  # matrices that dot copies for BLAS
    (np.broadcast_to(LIST[:21], (9, 21)), MATRIX),
    (np.broadcast_to(LIST[:21, np.newaxis], (21, 21)), MATRIX),
    (MATRIX[::-1], MATRIX),
    (MATRIX[:, ::2], MATRIX[:11]),
]
UNLIKE = {  # calls that a loop would not make like numpy
    "lists": partial(operator.setitem, np.zeros((2, 64), np.float32), slice(None), [LIST[:64], LIST[:64]]),
    **{f"product {k}": partial(np.dot, *each, RESULTS[: len(each[0])]) for k, each in enumerate(PRODUCTS)},
    "long rows": partial(np.add.reduce, LONG, 1, None, np.empty(3, np.float32)),
    "a long sum": partial(np.add.reduce, LONG, None, None, np.empty((), np.float32)),
    "a sum to its rows": partial(np.add.reduce, MATRIX, 0, None, MATRIX[0]),
    "a sum in another type": partial(np.add.reduce, LIST, None, np.float32, np.empty(())),
    "a sum of swapped bytes": partial(np.add.reduce, LIST[:9].astype(">f4"), None, np.float64, np.empty(())),
    "an unaligned sum": partial(np.add.reduce, ODD, None, None, np.empty((), np.float32)),
    "an unaligned copy": partial(np.copyto, NUMBERS, ODD),
    "numbers put to themselves": partial(operator.setitem, NUMBERS, (PLACES[-9:],), NUMBERS[:]),
    "numbers taken to themselves": partial(np.take, NUMBERS, PLACES[-9:], mode="clip", out=NUMBERS),
    "a bool as index": partial(operator.setitem, np.zeros(1, np.float32), True, 2.0),
    "a large integer": partial(np.less, BYTES, 300, out=np.zeros(37, bool)),
    "a float as result": partial(c_function("fabsf", ctypes.c_float, ctypes.c_float), ctypes.c_float(1)),
    "a short integer": partial(c_function("abs", ctypes.c_int, ctypes.c_short), ctypes.c_short(-1)),
}  # fmt: skip


@CODE
@pytest.mark.parametrize("name", UNLIKE)
def test_calls_that_a_loop_would_not_make_like_numpy_are_left_to_python(name):
    assert records_of(UNLIKE[name]) is None


@CODE
@pytest.mark.parametrize("decide", [lambda x: bool((x < 5).all()), lambda x: int(x[:1].reshape(()))])
def test_a_check_expects_the_numbers_of_the_recording(decide):
    """Also if the batches deviate that come when calls are joined."""
    replayed, batch = HostPass(), np.array([3, 4])
    with replayed.recording(0):
        recorded = replayed.put("batch", batch)
        with replayed.capturing():
            decide(recorded)
            replayed._recorder.numbers = [(recorded.sum() + 1).array]
    for step in range(1, joined_calls.JOINED_AFTER + 4):
        deviates = step in (1, joined_calls.JOINED_AFTER, joined_calls.JOINED_AFTER + 1)
        replayed.put("batch", np.array([7, 8]) if deviates else batch)
        replayed.launch(step)
        np.testing.assert_array_equal(replayed.read(), [np.nan if deviates else 8])
    assert isinstance(replayed._calls._calls[0], joined_calls.JoinedCalls)


@CODE
def test_numbers_with_infinite_squares_are_finite():
    check = FiniteCheck([np.full(4, 1e25, np.float32)])
    (joined,) = joined_calls.join_calls([check, check])
    with np.errstate(all="ignore"):
        check()
    joined()


@CODE
def test_without_the_interpreters_lock_no_calls_are_joined(monkeypatch):
    calls = [partial(np.add, LIST, 1, out=np.empty_like(LIST))] * 2
    assert joined_calls.join_calls(calls) != calls
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert joined_calls.join_calls(calls) == calls


DOUBLE = "def loop(x, size):\n    for at in range(size):\n        x[at] = x[at] * np.float32(2.0)\n"


def doubled():
    x = np.arange(5, dtype=np.float32)
    compiler.load_loop(DOUBLE, "fn")(buffers.address(x), x.size)
    return x.tolist()


@CODE
def test_code_is_kept_and_run_without_numba(tmp_path, monkeypatch):
    """Unless it is damaged, answers another request or can be written by others; then it is made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_compile_here", None)
    assert doubled() == [0, 2, 4, 6, 8]
    (path,) = (tmp_path / "dsinga" / "loops").iterdir()
    sealed, made = path.read_bytes(), []
    monkeypatch.setattr(compiler, "_make", lambda request: made.append(request) or sealed)
    assert doubled() == [0, 2, 4, 6, 8]
    assert not made
    other = code_files.seal(b"another request", sealed[32:])
    for damaged in (b"", sealed[:-1], sealed[:40], sealed[:-1] + bytes([sealed[-1] ^ 1]), other):
        path.write_bytes(damaged)
        assert doubled() == [0, 2, 4, 6, 8]
        assert path.read_bytes() == sealed
    path.chmod(0o666)
    made.clear()
    assert doubled() == [0, 2, 4, 6, 8]
    assert len(made) == 1
    shutil.rmtree(path.parent)
    path.parent.touch()  # a folder that cannot be made
    assert doubled() == [0, 2, 4, 6, 8]
    assert len(made) == 2


@CODE
def test_joined_calls_need_no_numba(monkeypatch):
    monkeypatch.setattr(compiler, "_compile_here", None)
    assert compiler.load_loop(joined_calls._LOOP, "qnq", keeps_lock=True)


@CODE
def test_code_of_other_intrinsics_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_compile_here", None)
    assert doubled() == [0, 2, 4, 6, 8]
    other = tmp_path / "other.py"
    other.write_bytes(compiler.INTRINSICS[0].read_bytes() + b"#")
    monkeypatch.setattr(compiler, "INTRINSICS", (other,))
    assert doubled() == [0, 2, 4, 6, 8]
    assert len([*(tmp_path / "dsinga" / "loops").iterdir()]) == 2


@CODE
def test_without_code_numba_compiles_in_the_process(monkeypatch):
    monkeypatch.setattr(code_files, "FLAGS", {"of no processor"})
    code_files.runs_code.cache_clear()
    try:
        assert compiler._cached(DOUBLE, "fn") is None
        assert doubled() == [0, 2, 4, 6, 8]
    finally:
        code_files.runs_code.cache_clear()


@CODE
def test_code_that_calls_others_is_refused():
    """Such code would jump to an address of another process."""
    from dsinga.ops.compiled.machine_code import compile_loop, position_independent

    loop = compile_loop("def loop(x, size):\n    x[0] = np.sin(x[0])\n", "fn")
    refused(lambda: position_independent(loop), ".text refers to", error=ValueError)
