"""What the loops of Winograd's convolutions call: functions of a tile, for LANES channels in a register each.

Arguments are addresses, and steps in bytes. The transforms are those of Lavin and Gray (2016) for 2 x 2 results of a
3 x 3 kernel, along rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from dsinga.ops.compiled.code_files import LANES, ROWS

utilities: Any = cgutils
pointer: Any = types.CPointer
NUMBER, INTEGER = ir.FloatType(), ir.IntType(64)
REGISTER = ir.VectorType(NUMBER, LANES)
NAMES: dict[str, Any] = {}


def _inlined(emit: Callable[..., None]) -> Callable[..., None]:
    """Give loops a function of addresses and steps, whose instructions ``emit`` writes."""
    count = len(signature(emit).parameters) - 1

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit(builder, *args)
        return context.get_dummy_value()

    arguments = ", ".join(f"a{number}" for number in range(count))
    names: dict[str, Any] = {"typed": (types.void(*[types.int64] * count), write)}
    exec(f"def {emit.__name__}(context, {arguments}):\n    return typed", names)  # numba looks at the arguments
    NAMES[emit.__name__] = extending.intrinsic(names[emit.__name__])
    return emit


def _load(b: Any, at: Any) -> Any:
    return b.load(b.inttoptr(at, REGISTER.as_pointer()), align=4)


def _store(b: Any, register: Any, at: Any) -> None:
    b.store(register, b.inttoptr(at, REGISTER.as_pointer()), align=4)


def _same(number: float) -> ir.Constant:
    return ir.Constant(REGISTER, [number] * LANES)


def _step(b: Any, start: Any, count: int, step: Any) -> Any:
    return b.add(start, b.mul(step, ir.Constant(INTEGER, count)))


def _load_tile(b: Any, start: Any, rows: int, columns: int, row: Any, column: Any) -> list[list[Any]]:
    return [[_load(b, _step(b, _step(b, start, i, row), j, column)) for j in range(columns)] for i in range(rows)]


def _transformed(side: Callable[..., list[Any]], b: Any, tile: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Transform the columns of a tile, then its rows."""
    columns = [side(b, *column) for column in zip(*tile, strict=True)]
    return [side(b, *row) for row in zip(*columns, strict=True)]


def _store_in_steps(b: Any, tile: Sequence[Sequence[Any]], start: Any, step: Any) -> None:
    for number, register in enumerate(sum(map(list, tile), [])):
        _store(b, register, _step(b, start, number, step))


def _of_image(b: Any, p: Any, q: Any, r: Any, s: Any) -> list[Any]:
    return [b.fsub(p, r), b.fadd(q, r), b.fsub(r, q), b.fsub(q, s)]


def _of_result(b: Any, p: Any, q: Any, r: Any, s: Any) -> list[Any]:
    return [b.fadd(b.fadd(p, q), r), b.fsub(b.fsub(q, r), s)]


def _of_kernel(b: Any, p: Any, q: Any, r: Any) -> list[Any]:
    ends, half = b.fadd(p, r), _same(0.5)
    return [p, b.fmul(half, b.fadd(ends, q)), b.fmul(half, b.fsub(ends, q)), r]


def _of_result_gradient(b: Any, p: Any, q: Any) -> list[Any]:
    half = _same(0.5)
    return [p, b.fmul(half, b.fadd(p, q)), b.fmul(half, b.fsub(p, q)), b.fsub(_same(-0.0), q)]


def _of_kernel_gradient(b: Any, p: Any, q: Any, r: Any, s: Any) -> list[Any]:
    return [b.fadd(b.fadd(p, q), r), b.fsub(q, r), b.fadd(b.fadd(q, r), s)]


@_inlined
def image_tile(b: Any, x: Any, row: Any, pixel: Any, parts: Any, step: Any) -> None:
    """Transform 4 x 4 pixels to 16 parts."""
    _store_in_steps(b, _transformed(_of_image, b, _load_tile(b, x, 4, 4, row, pixel)), parts, step)


@_inlined
def kernel_tile(b: Any, w: Any, row: Any, tap: Any, parts: Any, step: Any) -> None:
    """Transform the 3 x 3 numbers of a kernel to 16 parts."""
    _store_in_steps(b, _transformed(_of_kernel, b, _load_tile(b, w, 3, 3, row, tap)), parts, step)


@_inlined
def result_tile(b: Any, parts: Any, row: Any, step: Any, bias: Any, p: Any, q: Any, r: Any, s: Any) -> None:
    """Transform 16 parts to 2 x 2 pixels at p, q, r, s, and add the bias."""
    pixels = _transformed(_of_result, b, _load_tile(b, parts, 4, 4, row, step))
    for register, at in zip(sum(pixels, []), (p, q, r, s), strict=True):
        _store(b, b.fadd(register, _load(b, bias)), at)


@_inlined
def result_gradient_tile(b: Any, p: Any, q: Any, r: Any, s: Any, parts: Any, step: Any) -> None:
    """Transform the gradient for 2 x 2 pixels at p, q, r, s to 16 parts."""
    pixels = [[_load(b, p), _load(b, q)], [_load(b, r), _load(b, s)]]
    _store_in_steps(b, _transformed(_of_result_gradient, b, pixels), parts, step)


@_inlined
def kernel_gradient_tile(b: Any, parts: Any, row: Any, step: Any, dw: Any, tap: Any) -> None:
    """Transform 16 parts to the gradient for the 3 x 3 numbers of a kernel."""
    _store_in_steps(b, _transformed(_of_kernel_gradient, b, _load_tile(b, parts, 4, 4, row, step)), dw, tap)


def _multiply(b: Any, adds: bool, *arguments: Any) -> None:
    x, row, column, w, line, depth, y, to = arguments
    kind = ir.FunctionType(REGISTER, [REGISTER] * 3)
    fma = utilities.get_or_insert_function(b.module, kind, f"llvm.fma.v{LANES}f32")
    sums = [utilities.alloca_once(b, REGISTER) for _ in range(ROWS)]  # registers, once LLVM has optimized it
    for number, total in enumerate(sums):
        b.store(_load(b, _step(b, y, number, to)) if adds else _same(0.0), total)
    first, lanes = ir.Constant(ir.IntType(32), 0), ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    nothing = ir.Constant(REGISTER, ir.Undefined)
    with utilities.for_range(b, depth) as loop:
        right, left = _load(b, b.add(w, b.mul(loop.index, line))), b.add(x, b.mul(loop.index, column))
        for number, total in enumerate(sums):
            factor = b.load(b.inttoptr(_step(b, left, number, row), NUMBER.as_pointer()), align=4)
            factors = b.shuffle_vector(b.insert_element(nothing, factor, first), nothing, lanes)
            b.store(b.call(fma, [factors, right, b.load(total)]), total)
    for number, total in enumerate(sums):
        _store(b, b.load(total), _step(b, y, number, to))


@_inlined
def multiply(b: Any, x: Any, row: Any, column: Any, w: Any, line: Any, depth: Any, y: Any, to: Any) -> None:
    """Compute ROWS rows and LANES columns of a product x·w."""
    _multiply(b, False, x, row, column, w, line, depth, y, to)


@_inlined
def add_product(b: Any, x: Any, row: Any, column: Any, w: Any, line: Any, depth: Any, y: Any, to: Any) -> None:
    """Add ROWS rows and LANES columns of a product x·w."""
    _multiply(b, True, x, row, column, w, line, depth, y, to)


@_inlined
def add_register(b: Any, x: Any, y: Any) -> None:
    """Add the numbers at x to those at y."""
    _store(b, b.fadd(_load(b, x), _load(b, y)), y)


@_inlined
def copy_register(b: Any, x: Any, y: Any) -> None:
    """Copy the numbers at x to y."""
    _store(b, _load(b, x), y)


@_inlined
def clear_register(b: Any, y: Any) -> None:
    """Set the numbers at y to 0."""
    _store(b, _same(0.0), y)


def _take(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    record, place = args
    return builder.atomic_rmw("add", builder.gep(record, [place]), ir.Constant(INTEGER, 1), "monotonic")


@extending.intrinsic
def take(context: Any, record: Any, place: Any) -> Any:
    """Add 1 to an integer that several threads count with; return what it was."""
    return types.int64(pointer(types.int64), types.intp), _take


NAMES["take"] = take
