"""Winograd's convolutions in place of oneDNN's: compiled loops, on the threads of the library's OpenMP."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.base.buffers import address
from dsinga.ops.compiled import winograd
from dsinga.ops.compiled.winograd import ADD_UP, CONVOLVE, FIELDS, PACK, UNPACK
from dsinga.ops.layout import contiguous, output_sizes
from dsinga.ops.onednn.library import dense, lib, strided
from dsinga.ops.onednn.primitive import conversion
from dsinga.ops.onednn.thread import is_small, note, thread_state
from dsinga.ops.recorded_array import plain, recorder
from dsinga.ops.types import Array, Shape, Sizes

PARTS, TAPS = 16, 9  # of a kernel
PLACES = {name: place for place, name in enumerate(FIELDS)}


class _Loop:
    """Runs the compiled loop on a record, whose fields have names; those of a call are addresses."""

    def __init__(self, threads: int = 1, **fields: int):
        loop: Any = winograd.winograd_loop()
        self._loop, self._threads, self._team = loop, threads, thread_state.team
        self._record = np.array([fields.get(name, 0) for name in FIELDS], np.int64)

    def __call__(self, *arrays: Array, **addresses: int) -> None:
        """Run it; ``arrays`` are what the addresses point to."""
        record = self._record
        for name, start in addresses.items():
            record[PLACES[name]] = start
        self._run(record)
        if (recorded := recorder()) is not None:
            record = record.copy()
            note(recorded, lambda: self._run(record), self._threads, self, record, *arrays)

    def _run(self, record: Array) -> None:
        record[1:3] = 0
        if self._threads == 1:
            self._loop(address(record))
            return
        self._team.use(self._threads)
        body, count = ctypes.cast(self._loop, ctypes.c_void_p), ctypes.c_uint(self._threads)
        lib.GOMP_parallel(body, ctypes.c_void_p(address(record)), count, ctypes.c_uint(0))


class _Kernel:
    """Base: packs kernels to parts, and knows how many threads work on images x with a kernel w."""

    def __init__(self, x: Shape, w: Shape, pad: Sizes):
        self.x, self.w = x, w
        self.y = (x[0], w[0], *output_sizes(x, w[2:], (1, 1), pad))
        operations = 2 * x[0] * self.y[2] * self.y[3] * w[0] * w[1] * TAPS
        small = is_small(operations, 4 * x[0] * (x[1] * x[2] * x[3] + w[0] * self.y[2] * self.y[3]))
        self.threads = thread_state.team.size if hasattr(lib, "GOMP_parallel") and not small else 1

    def loop(self, task: int, x: Shape, y: Shape, pad: Sizes, count: int = 0) -> _Loop:
        """Make the loop for a convolution of x to y; a thread takes ``count`` images at a time, or a piece of one."""
        pieces = 1 if count else winograd.pieces_of(y[2:], x[0], self.threads)
        slot = winograd.slot_bytes(x[1], y[1], y[2:])
        threads = min(self.threads, -(-x[0] // count) if count else x[0] * pieces)
        thread_state.scratchpad.reserve(slot * threads)
        return _Loop(
            threads, task=task, slot=slot, images=x[0], height=x[2], width=x[3], channels=4 * x[1],
            filters=4 * y[1], above=pad[0], left=pad[1], result_height=y[2], result_width=y[3],
            group=winograd.group_of(y[2:]), count=count or 1, pieces=pieces,
        )  # fmt: skip


def _by_tap(w: Shape, transposed: bool = False) -> Any:
    """Describe kernels (F, C, 3, 3) in memory (3, 3, C, F), or (3, 3, F, C), to oneDNN."""
    filters, channels, *_ = w
    size = filters * channels
    return strided(w, (*((channels, 1) if transposed else (1, filters)), 3 * size, size))


class WinogradForward(_Kernel):
    """The convolution of rows (B, H, W, C) by kernels (F, C, 3, 3), with or without a bias."""

    backward = False  # whether the kernels are turned around, and map results to images

    def __init__(self, x: Shape, w: Shape, stride: Sizes, pad: Sizes, bias: bool = False):
        super().__init__(x, w, pad)
        self._size = size = 4 * w[0] * w[1]
        self._by_tap = conversion(dense(w), _by_tap(w, self.backward))
        thread_state.packed_weights.reserve((TAPS + PARTS) * size)
        self._first_tap = (TAPS - 1) * size if self.backward else 0
        self._pack = _Loop(task=PACK, channels=size, step=-size if self.backward else size)
        source, self._shape = (self.y, x) if self.backward else (x, self.y)
        pad = tuple(2 - each for each in pad) if self.backward else pad
        self._convolve = self.loop(CONVOLVE, source, self._shape, pad)
        self._no_bias = np.zeros(self._shape[1], np.float32)

    def __call__(self, x: Array, w: Array, b: Array | None = None) -> Array:
        y = buffers.empty(self._shape, channels_last=True)
        x, w, target, bias = plain((x, w, y, self._no_bias if b is None else contiguous(b)))
        packed, scratch = thread_state.packed_weights.array, thread_state.scratchpad.array
        parts = address(packed) + TAPS * self._size
        self._by_tap(w, packed)
        self._pack(packed, source=address(packed) + self._first_tap, result=parts)
        self._convolve(
            *(packed, scratch, x, target, bias), source=address(x), second=parts, result=address(target),
            scratch=address(scratch), bias=address(bias),
        )  # fmt: skip
        return y


class WinogradBackwardData(WinogradForward):
    """The gradient for images, from rows (B, H', W', F) and the kernel (F, C, 3, 3)."""

    backward = True


class WinogradBackwardWeights(_Kernel):
    """The gradient for kernels, in shares of the batch, so that any number of threads adds them in one order."""

    def __init__(self, x: Shape, w: Shape, stride: Sizes, pad: Sizes):
        super().__init__(x, w, pad)
        count = -(-x[0] // winograd.shares_of(*w[:2]))  # images of a share
        self._size, self._shares = 4 * w[0] * w[1], -(-x[0] // count)
        self._add_up = self.loop(ADD_UP, x, self.y, pad, count)
        self._unpack = _Loop(task=UNPACK, images=self._shares, channels=self._size)
        self._from_taps = conversion(_by_tap(w), dense(w))
        thread_state.packed_weights.reserve((TAPS + self._shares * PARTS) * self._size)

    def __call__(self, x: Array, dy: Array) -> Array:
        dw = buffers.empty(self.w)
        x, dy = plain((x, dy))
        packed, scratch = thread_state.packed_weights.array, thread_state.scratchpad.array
        parts = address(packed) + TAPS * self._size
        self._add_up(
            *(packed, scratch, x, dy), source=address(x), second=address(dy), result=parts, scratch=address(scratch)
        )
        self._unpack(packed, source=parts, result=address(packed))
        self._from_taps(packed, dw)
        return dw
