"""Types that every file of the kernel backends uses in its signatures."""

from __future__ import annotations

from typing import Any

Array = Any
"""A ``numpy.ndarray``, or the array type of the backend."""

Pair = tuple[int, int]
"""(vertical, horizontal): a kernel, stride, pad or image size; also the two numbers of a random key."""
