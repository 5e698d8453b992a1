"""An emulated cuDNN on the CPU: graphs of one convolution, computed by numpy on memory at given addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from dsinga.ops.numpy.numpy_ops import NumpyOps
from tests.support import emulated_cupy

plain = NumpyOps()


class Unsupported(Exception):
    """cudnnGraphNotSupportedError."""


class Tensor:
    """A tensor of a graph."""

    def __init__(self, name: str = "", dim: Any = None, stride: Any = None, data_type: Any = None):
        self.name, self.dim, self.stride, self.data_type, self.output = name, dim, stride, data_type, False

    def set_output(self, value: bool) -> None:
        self.output = value

    def set_data_type(self, data_type: str) -> None:
        self.data_type = data_type

    def set_dim(self, dim: list[int]) -> None:
        self.dim = dim

    def set_stride(self, stride: list[int]) -> None:
        self.stride = stride

    def at(self, address: int) -> np.ndarray:
        """Return a view of the memory at an address."""
        dtype = {"FLOAT": np.float32, "BFLOAT16": np.uint16}[self.data_type]
        size = 1 + sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True))
        pointer = ctypes.cast(address, ctypes.POINTER(np.ctypeslib.as_ctypes_type(dtype)))
        flat = np.ctypeslib.as_array(pointer, (size,))
        steps = [step * flat.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(flat, self.dim, steps)


class Graph:
    """A graph of one convolution, whose stages must be built in the order of cuDNN's documentation."""

    STAGES = ("validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans")

    def __init__(
        self, cudnn: FakeCudnn, io_data_type: str, intermediate_data_type: str, compute_data_type: str, handle: Any
    ):
        assert (intermediate_data_type, compute_data_type, handle) == ("FLOAT", "FLOAT", "handle")
        self._cudnn, self.dtype, self.excluded, self.executed = cudnn, io_data_type, set(), False
        self.engines_excluded: list[str] = []
        self._stages: list[str] = []
        cudnn.graphs.append(self)

    def tensor(self, name: str, dim: list[int], stride: list[int], data_type: str) -> Tensor:
        return Tensor(name, dim, stride, data_type)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("conv_"):
            return lambda **arguments: self._convolve(name, **arguments)
        assert name in self.STAGES, name
        return lambda *_: self._pass(name)

    def _pass(self, stage: str) -> None:
        assert stage == self.STAGES[len(self._stages)]
        self._stages.append(stage)
        if stage == "check_support" and not self._cudnn.supports(self.excluded):
            raise Unsupported("no engine")

    def _convolve(self, operation: str, padding: list, stride: list, dilation: list, **tensors: Tensor) -> Tensor:
        assert dilation == [1, 1]
        self.operation, self._geometry, self._inputs = operation, (tuple(stride), tuple(padding)), tensors
        self._result = Tensor()
        return self._result

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        assert self._stages[-1] == "create_execution_plans", "cuDNN ignores notes that come earlier"
        self.excluded = set(notes)

    def deselect_engines(self, names: list[str]) -> None:
        assert self._stages[-1] == "create_execution_plans"
        self.engines_excluded = names

    def get_workspace_size(self) -> int:
        return 8

    def execute(self, pointers: dict[Tensor, int], workspace: int, handle: Any) -> None:
        """Compute on the memory at these addresses."""
        assert self._stages == list(self.STAGES)
        assert self._result.output
        assert workspace
        assert handle == "handle"
        assert not any(address % 16 for address in pointers.values()), "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"
        self.executed = True
        emulated_cupy.note(f"cudnn {self.operation}")
        arrays = {name: plain_float(tensor.at(pointers[tensor])) for name, tensor in self._inputs.items()}
        shape = self._result.dim
        if self.operation == "conv_fprop":
            result = plain.convolution(arrays["image"], arrays["weight"], None, *self._geometry)
        elif self.operation == "conv_dgrad":
            image = np.zeros(shape, np.float32)  # whose shape alone is used
            result, *_ = plain.convolution_grad(image, arrays["filter"], arrays["loss"], *self._geometry, True, False)
        else:
            weight = np.zeros(shape, np.float32)  # whose shape alone is used
            _, result, _ = plain.convolution_grad(
                arrays["image"], weight, arrays["loss"], *self._geometry, False, False
            )
        out = self._result.at(pointers[self._result])
        out[...] = result if out.dtype == np.float32 else (result.view(np.uint32) >> 16).astype(np.uint16)


def plain_float(array: np.ndarray) -> np.ndarray:
    """Return bfloat16 in uint16 as float32; float32 as it is."""
    return array if array.dtype == np.float32 else (array.astype(np.uint32) << 16).view(np.float32)


class Names(dict):
    """An enumeration: each name is its own value."""

    __getattr__ = staticmethod(str)


class FakeCudnn:
    """The module, with all ``graphs`` that were made and the ``streams`` that were set."""

    data_type = numerical_note = heur_mode = build_plan_policy = Names()
    cudnnGraphNotSupportedError = Unsupported

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.streams: list[int] = []
        self.supports: Callable[[set[str]], bool] = lambda excluded: True

    def backend_version(self) -> int:
        return 90800

    def backend_version_string(self) -> str:
        return "9.8.0"

    def create_handle(self) -> str:
        return "handle"

    def set_stream(self, handle: str, stream: int) -> None:
        self.streams.append(stream)

    def pygraph(self, **arguments: Any) -> Graph:
        return Graph(self, **arguments)
