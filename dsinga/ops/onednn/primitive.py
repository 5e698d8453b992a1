"""Primitives: oneDNN kernels, each made for fixed shapes and layouts, then run on arrays."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from dsinga.base.buffers import address
from dsinga.ops.onednn.library import (
    ARGUMENT,
    BFLOAT16,
    DST,
    IMPLEMENTATION,
    POST_OP,
    SCRATCHPAD,
    SRC,
    SRC_1,
    SUM,
    Handle,
    Unsupported,
    check,
    engine,
    execute,
    lib,
    quick_execute,
    set_data_handle,
)
from dsinga.ops.onednn.thread import is_small, note, thread_state
from dsinga.ops.recorded_array import Recorder, plain, recorder
from dsinga.ops.types import FLOAT32, Array

LANES = 8  # float32 numbers in a register of AVX2


class _Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_int), ("memory", ctypes.c_void_p)]


class Primitive:
    """A oneDNN kernel for fixed shapes and one thread.

    ``kind`` and ``arguments`` call the C function ``dnnl_<kind>_primitive_desc_create``, without its last argument, the
    attributes. ``post_ops`` are (algorithm, alpha, beta) for an elementwise function, (algorithm, descriptor) for a
    binary one, (SUM,) to add to the destination. ``operands`` are the arguments of an execution, in the order of a
    call's arrays.

    A kernel with few ``operations`` (0: few for each element) and bytes runs in the calling thread. Raises Unsupported
    if the ``implementation`` is missing, or reference code.
    """

    def __init__(
        self, kind: str, *arguments: Any, operands: tuple[int, ...], post_ops: tuple[Any, ...] = (),
        operations: int = 0, implementation: str = "",
    ):  # fmt: skip
        self._team = thread_state.team
        self._threads, self._execute = 1, quick_execute
        self._team.use(1)
        description = f"{kind}_primitive_desc_create", *arguments, attributes(post_ops)
        self.description = _describe(description, implementation)
        if not is_small(operations, sum(map(self.size, operands))):
            self._threads, self._execute = self._team.size, execute
            self._team.use(self._threads)
            self.description = _describe(description, implementation)  # it depends on the number of threads
        if self.implementation.startswith(("ref", "simple")):
            raise Unsupported(f"{kind} by {self.implementation}")
        self._primitive = Handle("primitive", "primitive_create", self.description)
        self._used = used = [operand for operand in operands if self.size(operand)]
        self._memories = [Handle("memory", "memory_create", self.layout(operand), engine, None) for operand in used]
        self._addresses = [memory._as_parameter_.value for memory in self._memories]
        self._scratch = thread_state.scratchpad
        scratch_size = self.size(SCRATCHPAD)
        if scratch_size:
            self._scratch.reserve(scratch_size)
            used.append(SCRATCHPAD)
            self._memories.append(Handle("memory", "memory_create", self.layout(SCRATCHPAD), engine, None))
        table = (_Argument * len(used))(
            *(_Argument(index, memory._as_parameter_) for index, memory in zip(used, self._memories, strict=True))
        )
        self._stream = thread_state.stream
        self._execution = (self._primitive._as_parameter_, self._stream._as_parameter_, len(used), table)
        self._scratch_memory = self._memories[-1]._as_parameter_.value if scratch_size else None

    def __call__(self, *arrays: Array) -> None:
        """Run the kernel on ``arrays``, which must have the descriptors' layout (unchecked)."""
        recorded = recorder()
        if recorded is not None:
            arrays = plain(arrays)
        for memory, array in zip(self._addresses, arrays, strict=True):
            set_data_handle(memory, address(array))
        if self._scratch_memory:
            set_data_handle(self._scratch_memory, address(self._scratch.array))
        self._team.use(self._threads)
        status = self._execute(*self._execution)
        if status:
            raise RuntimeError(f"oneDNN: an execution failed with status {status}")
        if recorded is not None:
            self._note(recorded, arrays)

    def _note(self, recorder: Recorder, arrays: tuple[Array, ...]) -> None:
        """Add the execution on ``arrays`` to a recording, in separate memory objects: others use this primitive."""
        memory = [*arrays, self._scratch.array] if self._scratch_memory else list(arrays)
        handles = [
            Handle("memory", "memory_create", self.layout(operand), engine, ctypes.c_void_p(address(array)))
            for operand, array in zip(self._used, memory, strict=True)
        ]
        count = len(handles)
        arguments = (_Argument(index, each._as_parameter_) for index, each in zip(self._used, handles, strict=True))
        table = (_Argument * count)(*arguments)
        call = partial(self._execute, *self._execution[:2], ctypes.c_int(count), ctypes.cast(table, ctypes.c_void_p))
        note(recorder, call, self._threads, self, self._stream, table, *handles, *memory)

    def layout(self, operand: int) -> ctypes.c_void_p:
        """Return oneDNN's descriptor of an operand's layout; it lives as long as the primitive."""
        return ctypes.c_void_p(lib.dnnl_primitive_desc_query_md(self.description, ARGUMENT, operand))

    def size(self, operand: int) -> int:
        """Return an operand's bytes; 0 without such an operand."""
        layout = self.layout(operand)
        return lib.dnnl_memory_desc_get_size(layout) if layout else 0

    @property
    def implementation(self) -> str:
        """oneDNN's name for the kernel's code, such as "brgconv:avx512_core"."""
        return implementation_of(self.description)


def _describe(description: tuple[Any, ...], implementation: str) -> Handle:
    handle = Handle("primitive_desc", *description)
    while implementation and implementation_of(handle) != implementation:
        check(lib.dnnl_primitive_desc_next_impl(handle), "next_impl")
    return handle


def implementation_of(description: Handle) -> str:
    """Return oneDNN's name for the code that a primitive description selects."""
    name = ctypes.c_char_p()
    check(lib.dnnl_primitive_desc_query(description, IMPLEMENTATION, 0, ctypes.byref(name)), "query")
    return (name.value or b"").decode()


def attributes(post_ops: tuple[Any, ...] = ()) -> Handle:
    """Create a primitive's attributes: scratch memory from the caller, and ``post_ops``."""
    result = Handle("primitive_attr", "primitive_attr_create")
    check(lib.dnnl_primitive_attr_set_scratchpad_mode(result, 1), "set_scratchpad_mode")
    chain = Handle("post_ops", "post_ops_create")
    for algorithm, *values in post_ops:
        if algorithm == SUM:
            check(lib.dnnl_post_ops_append_sum(chain, ctypes.c_float(1.0), 0, 0), "append_sum")
        elif len(values) == 1:
            check(lib.dnnl_post_ops_append_binary(chain, algorithm, values[0]), "append_binary")
        else:
            alpha, beta = map(ctypes.c_float, values)
            check(lib.dnnl_post_ops_append_eltwise(chain, algorithm, alpha, beta), "append_eltwise")
    check(lib.dnnl_primitive_attr_set_post_ops(result, chain), "set_post_ops")
    return result


def operand_of(post_op: int) -> int:
    """Return the execution argument for the binary post-operation with this index."""
    return POST_OP * (post_op + 1) | SRC_1


def accepts(*arrays: Array | None) -> bool:
    """Whether oneDNN supports these arrays: all float32 and not empty, or None."""
    return _are_of(FLOAT32, arrays)


def accepts_alike(x: Array, *arrays: Array | None) -> bool:
    """Whether a kernel with a bfloat16 form supports these arrays: all bfloat16 or all float32, none empty."""
    return _are_of(x.dtype if x.dtype == BFLOAT16 else FLOAT32, (x, *arrays))


def _are_of(dtype: np.dtype, arrays: tuple[Array | None, ...]) -> bool:
    for array in arrays:
        if array is not None and (array.dtype != dtype or not array.size):
            return False
    return True


def shows_nan(x: Array) -> bool:
    """Whether a matrix or an image (B, C, ...) has NaN in the middle of its first record."""
    middle = x[(0, slice(None), *(size // 2 for size in x.shape[2:]))]
    if x.dtype != FLOAT32:
        middle = middle.astype(FLOAT32)
    return bool(np.isnan(middle.max()))


def reorder(source: Any, destination: Any) -> Primitive | None:
    """Create the primitive that copies an array to another layout; None if they are equal."""
    return None if lib.dnnl_memory_desc_equal(source, destination) else conversion(source, destination)


def conversion(source: Any, destination: Any) -> Primitive:
    """Create the primitive that copies between layouts or number formats."""
    return Primitive("reorder", source, engine, destination, engine, operands=(SRC, DST))
