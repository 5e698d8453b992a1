"""Recorded arrays beside numpy's: a random program, recorded once and replayed on other numbers, or refused."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.ops.compiled import joined_calls
from dsinga.ops.host_pass import HostPass
from dsinga.ops.recorded_array import plain
from dsinga.ops.types import NotCapturable
from tests.support.refusals import refused

Program = list[tuple[int, int, int]]  # of each operation its number, and the numbers of the values that it takes


def _write(index: Any) -> Callable[[Any, Any], Any]:
    def write(a: Any, b: Any) -> Any:
        a[index] = b
        return None

    return write


def _add_to_alias(a: Any, b: Any) -> Any:
    alias = a
    a += b
    return alias, a


def _number_before(a: Any, b: Any) -> Any:
    first = a[0, 0]
    a[...] = b
    return first


def _to_new(a: Any, _: Any) -> Any:
    target = np.zeros(np.shape(a), np.float32)
    target[...] = a
    return target


STATE = np.zeros((3, 4), np.float32)  # made before the pass

OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a @ b.T, lambda a, b: 2.5 - a, lambda a, b: a / 3,
    lambda a, b: a > b, lambda a, b: ~(a == b), lambda a, b: divmod(a, 0.5), lambda a, b: -a,
    lambda a, b: np.maximum(a, b), lambda a, b: np.add.outer(a[0], b[0]), lambda a, b: np.add.reduce(a, axis=1),
    lambda a, b: np.add.at(a, 0, b[0]), lambda a, b: np.multiply(a, b, out=a),
    lambda a, b: np.exp(a, where=b > 0, out=b), lambda a, b: np.add(STATE, a, out=STATE),
    lambda a, b: np.sum(a, axis=0, out=STATE[0]), lambda a, b: a.sum(), lambda a, b: a.mean(axis=0),
    lambda a, b: np.mean(a), lambda a, b: a.astype(np.float16).mean(), lambda a, b: a.max(axis=1, keepdims=True),
    lambda a, b: a.argmax(axis=-1), lambda a, b: a.cumsum(axis=0), lambda a, b: np.clip(a, 0, b),
    lambda a, b: np.prod(a, dtype=np.float64), lambda a, b: (a > 0).all(), lambda a, b: np.where(a > b, a, 1),
    lambda a, b: np.concatenate([a, b]), lambda a, b: np.stack([a, b], axis=1),
    lambda a, b: np.einsum("ij,ij->i", a, b), lambda a, b: np.dot(a, b.T), lambda a, b: np.linalg.norm(a),
    lambda a, b: np.sort(a, axis=0), lambda a, b: a.sort(axis=1), lambda a, b: np.argsort(a, axis=1, kind="stable"),
    lambda a, b: np.take(a, [1, 0], 1), lambda a, b: np.take_along_axis(a, b.argmax(axis=1)[:, None], 1),
    lambda a, b: np.split(a, 2, axis=1), lambda a, b: np.split(a, b.argmax(axis=0)),
    lambda a, b: np.roll(a, 1, axis=0), lambda a, b: np.unique(a), lambda a, b: np.nonzero(a > 0),
    lambda a, b: np.flatnonzero(a > 0.25), lambda a, b: np.zeros_like(a),
    lambda a, b: np.full_like(a, 3, shape=(2, 2)), lambda a, b: np.ones_like(a) + b,
    lambda a, b: np.broadcast_to(a[0], (3, 4)), lambda a, b: np.moveaxis(a, 0, 1),
    lambda a, b: np.trim_zeros(a[0] > 0), lambda a, b: np.array_equal(a, b), lambda a, b: np.count_nonzero(a > 0),
    lambda a, b: np.copyto(a, b), lambda a, b: np.copyto(STATE, a), lambda a, b: np.fill_diagonal(STATE, a[0, 0]),
    lambda a, b: np.putmask(a, b > 0, 7), lambda a, b: np.nan_to_num(a, copy=False), lambda a, b: np.diff(a, axis=1),
    lambda a, b: np.repeat(a, 2, axis=0), lambda a, b: np.searchsorted(np.arange(3), a),
    lambda a, b: np.interp(a, [0, 1], [0, 2]), lambda a, b: a.reshape(-1), lambda a, b: a.T, lambda a, b: a.copy(),
    lambda a, b: a.astype(np.int32), lambda a, b: a.astype(a.dtype, copy=False), lambda a, b: a.view(np.uint8),
    lambda a, b: a.fill(2), lambda a, b: a[:, 1:], lambda a, b: a[0], lambda a, b: a[0, 1], lambda a, b: a[..., None],
    lambda a, b: a[[0, 1]], lambda a, b: a[a > 0.5], lambda a, b: a[b.argmax(axis=0)], lambda a, b: a[b.argmax() % 3],
    lambda a, b: a[int(b.argmax()) % 3], lambda a, b: a[: b.argmax() % 3 + 1],
    lambda a, b: STATE[b.argmax() % 3].copy(), lambda a, b: a * 2 if (b > 0.5).any() else a + 1,
    lambda a, b: a * float(b.sum()), lambda a, b: a * len(a), lambda a, b: [row * 2 for row in a],
    lambda a, b: max(a[0, 0], b[0, 0]), lambda a, b: sum(a[0]), lambda a, b: 0.5 in a, lambda a, b: f"{a.sum():g}",
    lambda a, b: a.tolist(), lambda a, b: a.item(), lambda a, b: np.asarray(a), lambda a, b: np.ascontiguousarray(a),
    lambda a, b: np.array([a[0, 0], 1]), lambda a, b: np.float32(a.sum()), lambda a, b: np.full((2,), a[0, 0]),
    _write(0), _write((slice(None), 1)), _write([2, 0]), _write(...), _add_to_alias, _number_before, _to_new,
]  # fmt: skip


def run(program: Program, arrays: list[Any]) -> list[Any]:
    """Return the values of a program: the given arrays, then all that its operations give."""
    values = list(arrays)
    for operation, first, second in program:
        result = OPERATIONS[operation](values[first % len(values)], values[second % len(values)])
        values += result if isinstance(result, (list, tuple)) else [result] if result is not None else []
    return values


def valid(program: Program, arrays: list[np.ndarray]) -> Program:
    """Return the operations of a program that numpy accepts, on arrays of these shapes."""
    kept: Program = []
    for operation in program:
        try:
            run([*kept, operation], [array.copy() for array in arrays])
        except Exception:
            continue
        kept.append(operation)
    return kept


def batch(number: int) -> list[np.ndarray]:
    rng = np.random.default_rng(number)
    return [rng.integers(-4, 5, (3, 4)).astype(np.float32) / 4, rng.random((3, 4)).astype(np.float32)]


def outcome(program: Program) -> str:
    """Record a program and replay it on other numbers; return whether it was refused, or has numpy's results."""
    memory, state = HostPass(), STATE.copy()
    arrays = batch(0)
    try:
        with mock.patch.object(joined_calls, "JOINED_AFTER", 0), memory.recording(0), memory.capturing():
            recorded = run(program, [memory.put(f"{k}", array) for k, array in enumerate(arrays)])
    except Exception as error:
        np.testing.assert_array_equal(STATE, state)
        return "refused" if isinstance(error, NotCapturable) else "failed"
    results = memory.results(recorded)
    compared = 0
    for number in (0, 1, 2):
        for k, array in enumerate(batch(number)):
            memory.put(f"{k}", array)
        try:
            memory.launch(number)
        except Exception as error:  # which the call raises, too
            with pytest.raises(type(error)):
                run(program, batch(number))
            continue
        if np.isnan(memory.read()).any():  # Python decides otherwise
            assert number
            continue
        expected = run(program, batch(number))
        compared += 1
        assert len(results) == len(expected)
        for actual, value in zip(results, expected, strict=True):
            assert type(plain(actual)) is np.ndarray or type(actual) is type(value)
            np.testing.assert_array_equal(actual, value, strict=isinstance(value, np.ndarray))
    return f"compared {compared}"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 10_000)] * 3), min_size=1, max_size=6))
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_a_replay_has_numpys_numbers_or_is_refused(program: Program):
    STATE[...] = 0
    outcome(valid([(operation % len(OPERATIONS), *values) for operation, *values in program], batch(0)))  # type: ignore[misc]


@pytest.mark.parametrize("operation", range(len(OPERATIONS)))
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_an_operation_has_numpys_numbers_or_is_refused(operation: int):
    STATE[...] = 0
    outcome(valid([(operation, 0, 1), (operation, 2, 1), (operation, 2, 2)], batch(0)))


def test_a_pass_of_large_arrays_is_given_up_before_it_takes_their_memory() -> None:
    memory = HostPass()
    x = memory.put("x", np.ones((1 << 10, 1 << 10), np.float32))
    made: list[Any] = []

    def record() -> None:
        with memory.recording(0):
            made.extend(x + number for number in range(100))

    refused(lambda: record(), "more than 16 MB", error=NotCapturable)
    assert len(made) == 4
