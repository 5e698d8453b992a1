"""Tensors without numbers that stand for outputs of layers while the forward of a PyTorch module is traced."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsinga.base.errors import UserError
from dsinga.nn.writing.reshaping import rows_of
from dsinga.nn.writing.symbol import Symbol

# What tensors tell without their numbers: properties, and methods.
KNOWN = {
    "__len__", "device", "dim", "dtype", "get_device", "is_complex", "is_contiguous", "is_cpu", "is_cuda", "is_meta",
    "is_floating_point", "is_mps", "is_nested", "is_sparse", "layout", "ndim", "numel", "requires_grad", "shape",
    "size",
}  # fmt: skip
_Tensor: Any = torch.Tensor  # its methods have types only where PyTorch is installed
# What stops gradients, which layers do not, is said with the remedy.
FREEZE = "which stops gradients: freeze the params before it, by requires_grad_(False)"


class NotConvertible(Exception):
    """A module or an operation that has no counterpart; the text says which setting of it, "" for all of it."""


class TracedTensor(_Tensor):  # type: ignore[misc]
    """A tensor without numbers that stands for the feature of a layer.

    Attributes:
        tracer: the run of the forward that it belongs to.
        symbol: the feature of a layer, None where the first axis is no batch, after an operation that is unsupported.
        unbatched: whether it is the same for all records, as a param is: the tensor then has no axis of the batch, and
            the rows of the symbol have its shape.
        batch_axis: the axis of the batch, 1 of sequences (T, B, n), whose symbol has it first, as any.
        param: the name and the value of a param of the module, None for others.
        make: makes the layer where its feature is first used, None where there is one.
    """

    tracer: Any
    _symbol: Symbol | None
    unbatched: bool
    batch_axis: int
    param: tuple[str, Any] | None
    make: Callable[[], Symbol] | None

    @staticmethod
    def __new__(
        cls, trace: Any, symbol: Symbol | None, shape: Sequence[int], unbatched: bool = False, batch_axis: int = 0,
        make: Callable[[], Symbol] | None = None, param: tuple[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> TracedTensor:  # fmt: skip
        """Return a tensor of this shape."""
        tensor: TracedTensor = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype)
        tensor.tracer, tensor.symbol, tensor.unbatched, tensor.batch_axis = trace, symbol, unbatched, batch_axis
        tensor.make, tensor.param = make, param
        return tensor

    @property
    def symbol(self) -> Symbol | None:
        """The feature of a layer."""
        if self._symbol is None and self.make is not None:
            self._symbol = self.make()
        return self._symbol

    @symbol.setter
    def symbol(self, symbol: Symbol | None) -> None:
        self._symbol = symbol

    @property
    def is_made(self) -> bool:
        """Whether its layer was made, after which an operation may have changed the tensor in place."""
        return self._symbol is not None

    @property
    def is_stray(self) -> bool:
        """Whether no layer computes it, after an operation that is unsupported."""
        return self._symbol is None and self.make is None

    def with_batch_axis(self, axis: int) -> TracedTensor:
        """Return the tensor of the same feature that has the batch as this axis."""
        assert self.symbol is not None
        rows = rows_of(self.symbol)
        shape = (*rows[:axis], self.tracer.batch, *rows[axis:])
        return TracedTensor(self.tracer, self.symbol, shape, batch_axis=axis, dtype=self.dtype)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Let an operation make a layer."""
        kwargs = kwargs or {}
        name = func.__name__ if func.__name__ != "__get__" else func.__self__.__name__
        if name in KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        traced = traced_in([args, kwargs])
        return traced[0].tracer.operate(name, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Refuse what reaches the numbers of a tensor."""
        raise UserError(f"{func} needs numbers, which a traced tensor does not have")

    def __repr__(self, **arguments: Any) -> str:
        return f"TracedTensor({tuple(self.shape)})"


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with each tensor in its tuples, lists and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [replaced(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return {key: replaced(item, change) for key, item in value.items()} if isinstance(value, dict) else value


def without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape on the device "meta"."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def batch_first(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the batch as its first axis, if it is a traced one."""
    return tensor.with_batch_axis(0) if isinstance(tensor, TracedTensor) else tensor


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value."""
    tensors: list[torch.Tensor] = []
    replaced(value, tensors.append)
    return tensors


def traced_in(value: Any) -> list[TracedTensor]:
    """Return the traced tensors in a value."""
    return [tensor for tensor in tensors_in(value) if isinstance(tensor, TracedTensor)]


# Tensors that are views of one another: a change in place of one changes the others in PyTorch, not here.
RESHAPING = {
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "swapaxes"),
    *("movedim", "mT", "t", "T", "getitem", "unbind", "detach", "data"),
}
# Operations and modules whose results have the numbers of their first argument.
VIEWS = RESHAPING | {"expand", "expand_as", "split", "chunk", "Flatten", "Unflatten"}


def relate_views(tensor: Any, views: Sequence[Any]) -> None:
    """Note that ``views`` have the numbers of a tensor."""
    relatives = _relatives(tensor)
    for view in views:
        if view is not tensor:
            relatives.append(weakref.ref(view))
            view.relatives = relatives


def change_views(tensor: Any, what: str) -> None:
    """Note that ``what`` changes a tensor in place, after which the others that have its numbers are of no use."""
    for view in (relative() for relative in _relatives(tensor)):
        if view is not None and view is not tensor:
            view.fault = f"on a tensor that {what} changes in place through another view of it"
    tensor.relatives = [weakref.ref(tensor)]


def fault_of(tensors: Sequence[Any]) -> str | None:
    """Return why a tensor cannot be used further, None where all have PyTorch's numbers."""
    return next((tensor.fault for tensor in tensors if hasattr(tensor, "fault")), None)


def _relatives(tensor: Any) -> list[Any]:
    if not hasattr(tensor, "relatives"):
        tensor.relatives = [weakref.ref(tensor)]
    relatives: list[Any] = tensor.relatives
    return relatives
