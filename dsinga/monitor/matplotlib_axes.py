"""Matplotlib, imported when something is drawn, and new axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.errors import UserError


def new_axes(count: int, columns: int, width: float, height: float) -> np.ndarray:
    """Return a new figure's axes (rows, columns), as many rows as ``count`` axes need; those left over are not drawn.

    ``width`` and ``height`` are the inches of each of the axes. Raises UserError where Matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise UserError(f"drawing needs Matplotlib ({error}): pip install 'dsinga[plot]'") from None
    columns = min(columns, count)
    rows = -(-count // columns)
    size = (width * columns, height * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return axes


def single_axes(ax: Any, width: float, height: float) -> Any:
    """Return the axes ``ax``, or new ones of so many inches if it is None."""
    return new_axes(1, 1, width, height)[0, 0] if ax is None else ax
