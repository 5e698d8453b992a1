"""Which traced tensors are views of one another: a change in place of one changes the others in PyTorch, not here."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

VIEWS = {
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "swapaxes"),
    *("movedim", "mT", "t", "T", "expand", "expand_as", "getitem", "split", "chunk", "unbind", "detach"),
    *("data", "Flatten", "Unflatten"),
}  # operations and modules whose results have the numbers of their first argument


def relate(tensor: Any, views: Sequence[Any]) -> None:
    """Note that ``views`` have the numbers of a tensor."""
    relatives = _relatives(tensor)
    for view in views:
        if view is not tensor:
            relatives.append(weakref.ref(view))
            view.relatives = relatives


def change(tensor: Any, what: str) -> None:
    """Note that ``what`` changes a tensor in place, after which the others that have its numbers are of no use."""
    for other in (relative() for relative in _relatives(tensor)):
        if other is not None and other is not tensor:
            other.fault = f"on a tensor that {what} changes in place through another view of it"
    tensor.relatives = [weakref.ref(tensor)]


def fault(tensors: Sequence[Any]) -> str | None:
    """Return why one of these tensors is of no use, None where all are as PyTorch has them."""
    return next((tensor.fault for tensor in tensors if hasattr(tensor, "fault")), None)


def _relatives(tensor: Any) -> list[Any]:
    if not hasattr(tensor, "relatives"):
        tensor.relatives = [weakref.ref(tensor)]
    relatives: list[Any] = tensor.relatives
    return relatives
