"""PyTorch tensors without numbers, on which a module's forward is run to trace its operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsinga.base.errors import UserError
from dsinga.nn.writing.tensor import BOOL, Tensor

# Properties and methods that need no numbers of a tensor.
KNOWN = {
    "__len__", "device", "dim", "dtype", "get_device", "is_complex", "is_contiguous", "is_cpu", "is_cuda", "is_meta",
    "is_floating_point", "is_mps", "is_nested", "is_sparse", "layout", "ndim", "numel", "requires_grad", "shape",
    "size",
}  # fmt: skip
_Tensor: Any = torch.Tensor  # its methods have types only where PyTorch is installed
# Layers do not stop gradients: errors name the remedy.
FREEZE = "which stops gradients: freeze the params before it, by requires_grad_(False)"


class TracedTensor(_Tensor):  # type: ignore[misc]
    """A PyTorch tensor without numbers that stands for a layer's feature in a traced forward.

    Attributes:
        value: the symbolic tensor, None after an unsupported operation.
        fault: why it cannot be used further, if so.
    """

    tracer: Any
    value: Tensor | None

    @staticmethod
    def __new__(
        cls, trace: Any, value: Tensor | None, shape: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> TracedTensor:
        """Return a traced tensor of this shape."""
        tensor: TracedTensor = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype)
        tensor.tracer, tensor.value = trace, value
        return tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Convert an operation on traced tensors to a layer."""
        kwargs = kwargs or {}
        name = func.__name__ if func.__name__ != "__get__" else func.__self__.__name__
        if name in KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        traced = traced_in([args, kwargs])
        return traced[0].tracer.operate(name, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Raise UserError, because the operation needs a tensor's numbers."""
        raise UserError(f"{func} needs numbers, which a traced tensor does not have")

    def __repr__(self, **arguments: Any) -> str:
        return f"TracedTensor({tuple(self.shape)})"


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to each tensor in nested tuples, lists and dicts."""
    if isinstance(value, (torch.Tensor, Tensor)):
        return change(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [replaced(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return {key: replaced(item, change) for key, item in value.items()} if isinstance(value, dict) else value


def without_numbers(tensor: torch.Tensor | Tensor) -> torch.Tensor:
    """Return a tensor of the same shape on the device "meta"."""
    return torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype), device="meta")


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return PyTorch's dtype of a symbolic tensor: bool for truth values, else float32."""
    return dtype if isinstance(dtype, torch.dtype) else torch.bool if dtype == BOOL else torch.float32


def tensors_in(value: Any) -> list[Any]:
    """Return all tensors in nested tuples, lists and dicts."""
    tensors: list[Any] = []
    replaced(value, tensors.append)
    return tensors


def traced_in(value: Any) -> list[TracedTensor]:
    """Return all traced tensors in nested tuples, lists and dicts."""
    return [tensor for tensor in tensors_in(value) if isinstance(tensor, TracedTensor)]


# Tensors that are views of one another: a change in place of one changes the others in PyTorch, not here.
# These are the operations and modules whose results have the numbers of their first argument.
VIEWS = {
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "swapaxes"),
    *("movedim", "mT", "t", "T", "getitem", "unbind", "detach", "data"),
    *("expand", "expand_as", "split", "chunk", "Flatten", "Unflatten"),
}


def relate_views(tensor: Any, views: Sequence[Any]) -> None:
    """Record that ``views`` share a tensor's numbers, for changes in place."""
    relatives = _relatives(tensor)
    for view in views:
        if view is not tensor:
            relatives.append(weakref.ref(view))
            view.relatives = relatives


def change_views(tensor: Any, what: str) -> None:
    """Mark the other views of a tensor that ``what`` changes in place as unusable."""
    for view in (relative() for relative in _relatives(tensor)):
        if view is not None and view is not tensor:
            view.fault = f"on a tensor that {what} changes in place through another view of it"
    tensor.relatives = [weakref.ref(tensor)]


def fault_of(tensors: Sequence[Any]) -> str | None:
    """Return why one of some tensors cannot be used further; None if all can be."""
    return next((tensor.fault for tensor in tensors if hasattr(tensor, "fault")), None)


def _relatives(tensor: Any) -> list[Any]:
    if not hasattr(tensor, "relatives"):
        tensor.relatives = [weakref.ref(tensor)]
    relatives: list[Any] = tensor.relatives
    return relatives
