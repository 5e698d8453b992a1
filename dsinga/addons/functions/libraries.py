"""Computes the gradient of a user's function with the function's own library: JAX, autograd or PyTorch.

The arrays that a function returns tell its library. JAX treats values that a compiled function reads as constants, so
:class:`ReadValues` compares them.
"""

from __future__ import annotations

import functools
import logging
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.registry import is_user_code
from dsinga.job.function_digest import is_importable
from dsinga.job.functions import value_by_torch

Function = Callable[..., Any]  # a function of arrays of a library, which returns one of them
Pull = Callable[[np.ndarray], list[np.ndarray | None]]  # makes gradients for the arguments of that for the value

_log = logging.getLogger(__name__)

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ReadValues:
    """The values, such as globals, that a function reads besides its arguments; equal ones mean equal results.

    Numbers, texts and numpy arrays are compared by value. Lists, dicts, functions of the same module, and attributes
    that the code names are followed. Everything else, such as JAX arrays, is compared by identity.
    """

    def __init__(self, function: Any):
        self._values: list[Any] = []
        self._kept: dict[int, Any] = {}  # by identity, which no new object gets as long as these live
        for part in user_functions(function):
            self._add(part, frozenset(), getattr(part, "__module__", None))

    def equals(self, other: ReadValues | None) -> bool:
        """Return whether the values are unchanged."""
        return other is not None and self._values == other._values

    def _add(self, value: Any, names: frozenset[str], module: str | None) -> None:
        if type(value) in PLAIN:
            self._values.append((type(value), value))
        elif type(value) is np.ndarray and not value.dtype.hasobject:
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self._values.append((value.shape, value.dtype.str, zlib.crc32(data.data)))
        else:
            self._values.append(id(value))
            if id(value) not in self._kept:
                self._kept[id(value)] = value
                parts, names = _parts(value, names, module)
                for part in parts:
                    self._add(part, names, module)


def user_functions(function: Any) -> list[Any]:
    """Return the user's functions that a function calls; a user's function itself is the only one."""
    if is_user_code(function):
        return [function]
    if hasattr(function, "function"):
        return user_functions(function.function)
    bases = [cls for cls in function.cls.__mro__ if is_user_code(cls)]
    return [member for cls in bases for member in vars(cls).values() if isinstance(member, FunctionType)]


def _parts(value: Any, names: frozenset[str], module: str | None) -> tuple[list[Any], frozenset[str]]:
    if isinstance(value, FunctionType) and (value.__module__ == module or not is_importable(value)):
        names = _names(value.__code__)
        read = [value.__globals__[name] for name in sorted(names & value.__globals__.keys())]
        return [value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ()), *read], names
    if isinstance(value, (FunctionType, type)):
        return [], names
    if isinstance(value, CellType):
        return [value.cell_contents] if value != CellType() else [], names
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__], names | _names(getattr(value.__func__, "__code__", None))
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords], names
    if isinstance(value, dict):
        return [part for item in value.items() for part in item], names
    if isinstance(value, (list, tuple, set, frozenset)):
        return [len(value), *value], names
    call = next((vars(cls)["__call__"] for cls in type(value).__mro__ if "__call__" in vars(cls)), None)
    names |= _names(getattr(call, "__code__", None))
    attributes = getattr(value, "__dict__", {})
    return [call, *(attributes[name] for name in sorted(names & attributes.keys()))], names


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType | None) -> frozenset[str]:
    if code is None:
        return frozenset()
    return frozenset(code.co_names).union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))


class Computed(NamedTuple):
    """The value of a function as a numpy array, and its vector-Jacobian product (pull-back)."""

    value: np.ndarray
    pull: Pull


class LibraryFunction(ABC):
    """A function of arrays with its gradient; pickles like the function, and computes in any thread."""

    library: ClassVar[str]
    """The name of the library, for messages."""
    package: ClassVar[str]
    """The name of its package."""

    def __init__(self, function: Function):
        self.function = function

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def value(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the function's value as a numpy array."""
        return np.asarray(self.function(*arrays))

    @abstractmethod
    def compute(self, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> Computed:
        """Return the value, with the pull-back for arrays that need a gradient."""

    def row_by_row(self) -> LibraryFunction:
        """Return the function that calls this one on each row alone."""
        return type(self)(RowByRow(self.function, self.package))


class RowByRow:
    """A function of whole arrays that calls another on each row alone, (1, ...), and stacks the numbers, (B,)."""

    def __init__(self, function: Function, package: str):
        self.function, self.package = function, package

    def __call__(self, *arrays: Any) -> Any:
        def of_row(*row: Any) -> Any:
            return self.function(*(array[None] for array in row)).reshape(())

        library = sys.modules[self.package]
        if self.package != "autograd":
            try:
                return (library.func if self.package == "torch" else library).vmap(of_row)(*arrays)
            except Exception:  # such as a branch by the numbers of a row: each row is called
                pass
        values = [of_row(*(array[row] for array in arrays)) for row in range(len(arrays[0]))]
        return (library if self.package == "torch" else library.numpy).stack(values)


class JaxFunction(LibraryFunction):
    """A function of JAX arrays, compiled if possible, and compiled again when a value that it reads changes."""

    library, package = "JAX", "jax"

    def __init__(self, function: Function):
        super().__init__(function)
        self._compiled: tuple[tuple[Function, Function], tuple[Function, Function]] | None = None
        self._compiles = True
        self._read: ReadValues | None = None  # when it was compiled
        self._has_changed = False

    def _follow_changes(self) -> None:
        read = ReadValues(self.function) if self._compiles else None
        if self._compiled is not None and read is not None and not read.equals(self._read):
            self._compiled = None
            _log.log(
                logging.INFO if self._has_changed else logging.WARNING,
                "the function %s reads values that have changed: JAX compiles it again after each change; give what "
                "changes often as an input of the model",
                getattr(self.function, "title", "") or value_text(user_functions(self.function)[0]),
            )
            self._has_changed = True
        self._read = read

    def _call(self, which: int, *arguments: Any) -> Any:
        """Call the function (0) or its pull-back (1), compiled unless it branches by the arrays' numbers."""
        import jax

        if self._compiled is None:
            plain = _plain_functions(self.function)
            self._compiled = plain, (jax.jit(plain[0]), jax.jit(plain[1], static_argnums=0))
        plain, compiled = self._compiled
        arrays = arguments if which == 0 else arguments[1]
        with jax.enable_x64(True) if any(array.dtype == np.float64 for array in arrays) else nullcontext():
            if not self._compiles:
                return plain[which](*arguments)
            try:
                return compiled[which](*arguments)
            except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
                self._compiles = False
                return plain[which](*arguments)

    def value(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        self._follow_changes()
        return np.asarray(self._call(0, *arrays))

    def compute(self, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> Computed:
        value = self.value(arrays)

        def pull(grad: np.ndarray) -> list[np.ndarray | None]:
            return _spread(self._call(1, tuple(needs), tuple(arrays), grad.astype(value.dtype)), needs)

        return Computed(value, pull)


def _plain_functions(function: Function) -> tuple[Function, Function]:
    """Wrap a function of JAX and its pull-back in new functions, so that their compiled code dies with the model."""
    import jax

    def value(*arrays: Any) -> Any:
        return function(*arrays)

    def pull(needs: tuple[bool, ...], arrays: Sequence[Any], grad: Any) -> Any:
        def of_needed(*needed: Any) -> Any:
            chosen = iter(needed)
            return function(*(next(chosen) if need else a for a, need in zip(arrays, needs, strict=True)))

        return jax.vjp(of_needed, *(a for a, need in zip(arrays, needs, strict=True) if need))[1](grad)

    return value, pull


class AutogradFunction(LibraryFunction):
    """A function written with autograd.numpy, with its gradient."""

    library = package = "autograd"

    def compute(self, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> Computed:
        from autograd import make_vjp

        numbers = [index for index, need in enumerate(needs) if need]
        if not numbers:
            return Computed(self.value(arrays), lambda grad: [None] * len(needs))
        pull, value = make_vjp(self.function, numbers)(*arrays)
        value = np.asarray(value)
        return Computed(value, lambda grad: _spread(pull(grad.astype(value.dtype)), needs))


class TorchFunction(LibraryFunction):
    """A function of PyTorch tensors, with its gradient."""

    library, package = "PyTorch", "torch"

    def value(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return value_by_torch(self.function, arrays)

    def compute(self, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> Computed:
        import torch

        tensors = [torch.tensor(array) for array in arrays]  # copies: torch warns of read-only memory
        needed = [tensor.requires_grad_() for tensor, need in zip(tensors, needs, strict=True) if need]
        with torch.enable_grad():
            value = self.function(*tensors)

        def pull(grad: np.ndarray) -> list[np.ndarray | None]:
            if not needed or not value.requires_grad:
                return [np.zeros_like(a) if need else None for a, need in zip(arrays, needs, strict=True)]
            output_gradient = torch.tensor(grad, dtype=value.dtype)
            grads = torch.autograd.grad(value, needed, output_gradient, retain_graph=True, allow_unused=True)
            dense = [torch.zeros_like(t) if g is None else g for t, g in zip(needed, grads, strict=True)]
            return _spread([g.numpy() for g in dense], needs)

        return Computed(value.detach().numpy(), pull)


class NumpyFunction(LibraryFunction):
    """A function of numpy arrays, without a gradient: no source may need one."""

    library = package = "numpy"

    def compute(self, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> Computed:
        return Computed(self.value(arrays), lambda grad: [None] * len(needs))


# By the name of the package, in the order in which they are asked about a function that all could compute.
LIBRARIES: dict[str, type[LibraryFunction]] = {
    kind.package: kind for kind in (AutogradFunction, JaxFunction, TorchFunction)
}


def _spread(gradients: Sequence[Any], needs: Sequence[bool]) -> list[np.ndarray | None]:
    needed = iter(gradients)
    return [np.asarray(next(needed)) if need else None for need in needs]


def find_library(function: Function, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> LibraryFunction:
    """Find the library of the arrays that a function returns, and return the function with its gradient.

    Other functions that return numpy arrays have no gradient.
    """
    failure: Exception | None = None
    try:
        value = function(*arrays)
    except Exception as error:
        failure = error
    else:
        package = type(value).__module__.partition(".")[0].removesuffix("lib")
        if package in LIBRARIES:
            return LIBRARIES[package](function)
        if not isinstance(value, (np.ndarray, np.generic)):
            raise TypeError(
                f"it returns {type(value).__module__}.{type(value).__name__}, of which no gradient is known; return an "
                "array of JAX, autograd or PyTorch"
            )
    loaded = [package for package in LIBRARIES if package in sys.modules]
    installed = [package for package in LIBRARIES if package not in loaded and find_spec(package)]
    for package in loaded if failure or loaded else installed:
        candidate = LIBRARIES[package](function)
        try:
            computed = candidate.compute(arrays, needs)
            computed.pull(np.ones_like(computed.value))
        except Exception as error:
            # PyTorch refuses numpy's arrays: errors of its tensors are the function's own fault.
            failure = error if failure is not None and package == "torch" else failure
            continue
        return candidate
    if failure is not None:
        raise failure
    return NumpyFunction(function)
