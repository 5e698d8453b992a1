"""Compiles a loop by numba: for this process, or as machine code that runs at any address of any process.

    python -m dsinga.ops.compiled.machine_code < REQUEST > CODE

is the process in which ``dsinga.ops.compiled.compiler`` has a loop compiled.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from llvmlite.binding.object_file import ObjectFileRef
from numba import extending, types

from dsinga.ops.compiled import tile_code
from dsinga.ops.compiled.code_files import PROCESSOR, seal

POINTER: Any = types.CPointer
ARRAYS = {"f": types.float32, "d": types.float64, "H": types.uint16, "q": types.int64}
TYPES = {letter: POINTER(kind) for letter, kind in ARRAYS.items()} | {"n": types.intp}
ALIGNMENT = 64  # bytes; the first ones of the code say where the function begins
RELATIVE = {2, 4}  # R_X86_64_PC32 and PLT32: addresses relative to the code


def _same_bits(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.bitcast(args[0], context.get_value_type(signature.return_type))


@extending.intrinsic
def as_float32(context: Any, bits: Any) -> Any:
    """Return the float32 of 32 bits."""
    return types.float32(types.uint32), _same_bits


@extending.intrinsic
def as_uint32(context: Any, number: Any) -> Any:
    """Return the 32 bits of a float32."""
    return types.uint32(types.float32), _same_bits


@extending.intrinsic
def call_record(context: Any, records: Any, start: Any) -> Any:
    """Call the C function of a record: its address, 11 integers and 2 floats, after its kind; return the status."""

    def call(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer, number = ir.IntType(64), ir.FloatType()
        records, start = args
        words = [
            builder.load(builder.gep(records, [builder.add(start, ir.Constant(integer, k))])) for k in range(1, 15)
        ]
        floats = [builder.bitcast(builder.trunc(word, ir.IntType(32)), number) for word in words[12:]]
        kind = ir.FunctionType(ir.IntType(32), [integer] * 11 + [number] * 2)
        return builder.call(builder.inttoptr(words[0], kind.as_pointer()), [*words[1:12], *floats])

    return types.int32(TYPES["q"], types.intp), call


def _pointer_to(kind: Any) -> Any:
    """Return a function that turns an address into a pointer to numbers of a type."""

    def point(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    def pointer(context: Any, address: Any) -> Any:
        return POINTER(kind)(types.int64), point

    return extending.intrinsic(pointer)


POINTERS = {"floats": types.float32, "doubles": types.float64, "integers": types.int64, "bytes_at": types.uint8}
NAMES = {"np": np, "as_float32": as_float32, "as_uint32": as_uint32, "call_record": call_record}  # that a source uses
NAMES |= {name: _pointer_to(kind) for name, kind in POINTERS.items()} | tile_code.NAMES


def compile_loop(source: str, letters: str) -> Any:
    """Compile the function ``loop`` of a source, without reordering of floats, as a callback of numba."""
    names: dict[str, Any] = {**NAMES}
    exec(source, names)  # from this package alone
    kind = types.void(*map(TYPES.__getitem__, letters))
    return numba.cfunc(kind, error_model="numpy", forceinline=True)(names["loop"])


def position_independent(loop: Any, features: str = "") -> bytes:
    """Return a compiled loop's code with its constants; raise ValueError if it calls or reads anything else."""
    target = binding.Target.from_default_triple().create_target_machine(PROCESSOR, features, 3, "pic", "small")
    linked = ObjectFileRef.from_data(target.emit_object(binding.parse_assembly(loop.inspect_llvm())))
    sections = [((each.name() or b"").decode(), each.data()) for each in linked.sections()]  # in the order of numbers
    if len(data := dict(sections)) < len(sections):
        raise ValueError("sections share a name")
    code, starts = bytearray(ALIGNMENT), {}
    for number, (name, content) in enumerate(sections):
        if name.startswith((".text", ".rodata")):
            code += bytes(-len(code) % ALIGNMENT)
            starts[number] = len(code)
            code += content
    symbols = list(struct.iter_unpack("<IBBHQQ", data[".symtab"]))  # name, info, other, section, value, size
    for number, start in starts.items():
        for offset, info, addend in struct.iter_unpack("<QQq", data.get(f".rela{sections[number][0]}", b"")):
            _, _, _, section, value, _ = symbols[info >> 32]
            if info & 0xFFFFFFFF not in RELATIVE or section not in starts:
                raise ValueError(f"{sections[number][0]} refers to {section} by relocation {info & 0xFFFFFFFF}")
            struct.pack_into("<i", code, start + offset, starts[section] + value + addend - start - offset)
    (entry,) = (row for row in symbols if data[".strtab"].startswith(b"cfunc.", row[0]))
    struct.pack_into("<Q", code, 0, starts[entry[3]] + entry[4])
    return bytes(code)


def main() -> None:
    """Read a request, and write the sealed code."""
    request = sys.stdin.buffer.read()
    source, letters, features, *_ = json.loads(request)
    sys.stdout.buffer.write(seal(request, position_independent(compile_loop(source, letters), features)))


if __name__ == "__main__":
    main()
