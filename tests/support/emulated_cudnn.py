"""An emulated cuDNN on the CPU: graphs of one convolution, computed by numpy on memory at given addresses."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from dsinga.ops.interface import NumpyOps
from dsinga.ops.types import BFLOAT16
from tests.support import emulated_cupy
from tests.support import emulated_graphs as graphs

plain = NumpyOps()


class Unsupported(Exception):
    """cudnnGraphNotSupportedError."""


class Tensor:
    """A tensor of a graph."""

    def __init__(self, name: str = "", dim: Any = None, stride: Any = None, data_type: Any = None, uid: int = 0):
        self.name, self.dim, self.stride, self.data_type, self.output = name, dim, stride, data_type, False
        self.uid = uid

    def __getattr__(self, name: str) -> Any:
        if name not in ("set_output", "set_uid", "set_data_type", "set_dim", "set_stride"):
            raise AttributeError(name)
        return functools.partial(setattr, self, name.removeprefix("set_"))

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({"FLOAT": np.float32, "BFLOAT16": BFLOAT16}[self.data_type])

    @property
    def nbytes(self) -> int:
        return math.prod(self.dim) * self.dtype.itemsize

    def at(self, address: int) -> np.ndarray:
        """Return a view of the memory at an address."""
        size = 1 + sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True))
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_byte))
        flat = np.ctypeslib.as_array(pointer, (size * self.dtype.itemsize,)).view(self.dtype)
        steps = [step * flat.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(flat, self.dim, steps)


PLAN = SimpleNamespace(cpp_index=5)


class Graph:
    """A graph of one convolution, whose stages must be built in the order of cuDNN's documentation."""

    STAGES = ("validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans")

    def __init__(
        self, cudnn: FakeCudnn, io_data_type: str, intermediate_data_type: str, compute_data_type: str, handle: Any
    ):
        assert (intermediate_data_type, compute_data_type, handle) == ("FLOAT", "FLOAT", cudnn.handle)
        self._cudnn, self.dtype, self.excluded, self.executed = cudnn, io_data_type, set(), False
        self.engines_excluded: list[str] = []
        self.built = ""  # the name of the plan that was built; "" for the one of the heuristics
        self._stages: list[str] = []
        cudnn.graphs.append(self)

    def tensor(self, name: str, dim: list[int], stride: list[int], data_type: str, uid: int) -> Tensor:
        return Tensor(name, dim, stride, data_type, uid)

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
        geometry = tuple(stride), tuple(padding), tuple(dilation)
        self.operation, self._geometry, self._inputs = operation, geometry, tensors
        self._result, self._relu = Tensor(), False
        return self._result

    def bias(self, input: Tensor, bias: Tensor) -> Tensor:
        assert input is self._result
        assert bias.dim == [1, self._inputs["weight"].dim[0], 1, 1]
        self._inputs["bias"], self._result = bias, Tensor()
        return self._result

    def relu(self, input: Tensor) -> Tensor:
        assert input is self._result
        self._result, self._relu = Tensor(), True
        return self._result

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        assert self._stages[-1] == "create_execution_plans", "cuDNN ignores notes that come earlier"
        self.excluded = set(notes)

    def deselect_engines(self, names: list[str]) -> None:
        assert self._stages[-1] == "create_execution_plans"
        self.engines_excluded = names

    def get_execution_plan_count(self) -> int:
        return 2

    def get_plan_name_at_index(self, index: int) -> str:
        return f"eng{index}_k1=0"

    def build_plan_at_index(self, index: int) -> None:
        self.built = self.get_plan_name_at_index(index)
        if self._stages[-1] == "check_support":
            self._pass("build_plans")

    def get_workspace_size(self) -> int:
        return 8

    def _execute_with_raw_ptrs(self, addresses: int, count: int, workspace: int, handle: int, index: int) -> None:
        """Compute on the memory at the addresses in an array, in the order of the tensors' numbers: the fast form."""
        assert (handle, index) == (self._cudnn.handle.backend_handle, PLAN.cpp_index)
        tensors = sorted((*self._inputs.values(), self._result), key=lambda tensor: tensor.uid)
        values = list((ctypes.c_void_p * count).from_address(addresses))
        self._cudnn.fast += 1
        self.execute(dict(zip(tensors, values, strict=True)), workspace, self._cudnn.handle)

    @property
    def _lowered_graph(self) -> Graph:
        return self

    def _variant_pack_uids(self) -> list[int]:
        return sorted(tensor.uid for tensor in (*self._inputs.values(), self._result))

    selected_engine = None
    _plans, _plan_index = property(lambda self: [None, PLAN]), 1

    def execute(self, pointers: dict[Tensor, int], workspace: int, handle: Any) -> None:
        """Compute on the memory at these addresses."""
        assert self._stages == list(self.STAGES)
        assert self._result.output
        assert workspace
        assert handle is self._cudnn.handle
        assert not any(address % 16 for address in pointers.values()), "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"
        self.executed = True
        emulated_cupy.note(f"cudnn {self.operation}", *(tensor.nbytes for tensor in pointers))
        pointers = dict(pointers)
        graphs.launch(lambda: self._compute(pointers))

    def _compute(self, pointers: dict[Tensor, int]) -> None:
        arrays = {name: tensor.at(pointers[tensor]).astype(np.float32) for name, tensor in self._inputs.items()}
        shape = self._result.dim
        if self.operation == "conv_fprop":
            bias = arrays["bias"].reshape(-1) if "bias" in arrays else None
            image, weight = arrays["image"], arrays["weight"]
            if self._is_plain(image, weight):
                result = plain.convolution(image, weight, bias, *self._geometry[:2])
            else:
                groups = image.shape[1] // weight.shape[1]
                result = plain.grouped_convolution(image, weight, bias, *self._geometry, groups)
            result = plain.relu(result) if self._relu else result
        elif self.operation == "conv_dgrad":
            image = np.zeros(shape, np.float32)  # whose shape alone is used
            result, _ = self._gradients(image, arrays["filter"], arrays["loss"], True)
        else:
            weight = np.zeros(shape, np.float32)  # whose shape alone is used
            _, result = self._gradients(arrays["image"], weight, arrays["loss"], False)
        result = result + np.float32(self._cudnn.error_of.get(self.built, 0))
        out = self._result.at(pointers[self._result])
        out[...] = result.astype(out.dtype)  # rounded to the nearest, ties to even

    def _is_plain(self, image: np.ndarray, weight: np.ndarray) -> bool:
        return image.shape[1] == weight.shape[1] and self._geometry[2] == (1, 1)

    def _gradients(self, image: np.ndarray, weight: np.ndarray, loss: np.ndarray, need_dx: bool) -> Any:
        if self._is_plain(image, weight):
            return plain.convolution_grad(image, weight, loss, *self._geometry[:2], need_dx, False)[:2]
        groups = image.shape[1] // weight.shape[1]
        return plain.grouped_convolution_grad(image, weight, loss, *self._geometry, groups, need_dx, False)[:2]


class Names(dict):
    """An enumeration: each name is its own value."""

    __getattr__ = staticmethod(str)


class FakeCudnn:
    """The module, with all ``graphs`` that were made and the ``streams`` that were set."""

    data_type = numerical_note = heur_mode = build_plan_policy = Names()
    cudnnGraphNotSupportedError = Unsupported

    def __init__(self, version: str = "1.32.0") -> None:
        self.__version__, self.fast = version, 0  # the number of executions in the fast form
        self.handle = SimpleNamespace(backend_handle=77)
        self.error_of: dict[str, float] = {}  # what a plan adds to each number, by name
        self.graphs: list[Graph] = []
        self.streams: list[int] = []
        self.supports: Callable[[set[str]], bool] = lambda excluded: True

    def backend_version(self) -> int:
        return 90800

    def backend_version_string(self) -> str:
        return "9.8.0"

    def create_handle(self) -> Any:
        return self.handle

    def set_stream(self, handle: Any, stream: int) -> None:
        assert handle is self.handle
        self.streams.append(stream)

    def pygraph(self, **arguments: Any) -> Graph:
        return Graph(self, **arguments)
