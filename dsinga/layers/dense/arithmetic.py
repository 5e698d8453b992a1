"""kArithmetic, an operator on two features or a feature and a number, and kIndex, a slice of a feature."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Connection, Cut, Keeps
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import Reach
from dsinga.layers.interface.taps import Taps, weighted
from dsinga.ops import Ops
from dsinga.ops.layout import contiguous


class Operator(Enum):
    """The operators of kArithmetic."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3
    POWER = 4
    MATMUL = 5
    MAXIMUM = 6
    MINIMUM = 7
    AVERAGE = 8
    EQUAL = 9
    NOT_EQUAL = 10
    GREATER = 11
    GREATER_EQUAL = 12


COMPUTE: Mapping[Operator, Callable[[Any, Any, Any], Any]] = {
    Operator.ADD: lambda xp, a, b: a + b,
    Operator.SUBTRACT: lambda xp, a, b: a - b,
    Operator.MULTIPLY: lambda xp, a, b: a * b,
    Operator.DIVIDE: lambda xp, a, b: a / b,
    Operator.POWER: lambda xp, a, b: a**b,
    Operator.MATMUL: lambda xp, a, b: xp.matmul(a, b),
    Operator.MAXIMUM: lambda xp, a, b: xp.maximum(a, b),
    Operator.MINIMUM: lambda xp, a, b: xp.minimum(a, b),
    Operator.AVERAGE: lambda xp, a, b: (a + b) / 2,
    Operator.EQUAL: lambda xp, a, b: xp.equal(a, b),
    Operator.NOT_EQUAL: lambda xp, a, b: xp.not_equal(a, b),
    Operator.GREATER: lambda xp, a, b: xp.greater(a, b),
    Operator.GREATER_EQUAL: lambda xp, a, b: xp.greater_equal(a, b),
}
COMPARISONS = (Operator.EQUAL, Operator.NOT_EQUAL, Operator.GREATER, Operator.GREATER_EQUAL)

LINEAR = (Operator.ADD, Operator.SUBTRACT, Operator.AVERAGE, *COMPARISONS)  # with gradients that need no operands


def _transposed(matrices: Array) -> Array:
    axes = range(matrices.ndim)
    return matrices.transpose([*axes[:-2], axes[-1], axes[-2]])


# The derivatives by both operands, times the gradient g of the result.
DERIVE: Mapping[Operator, Callable[..., tuple[Any, Any]]] = {
    Operator.ADD: lambda xp, a, b, g: (g, g),
    Operator.SUBTRACT: lambda xp, a, b, g: (g, -g),
    Operator.MULTIPLY: lambda xp, a, b, g: (g * b, g * a),
    Operator.DIVIDE: lambda xp, a, b, g: (g / b, -g * a / (b * b)),
    Operator.POWER: lambda xp, a, b, g: (
        g * b * a ** (b - 1),
        None if b.ndim == 0 else g * a**b * xp.log(xp.where(a > 0, a, 1)),
    ),
    Operator.MATMUL: lambda xp, a, b, g: (xp.matmul(g, _transposed(b)), xp.matmul(_transposed(a), g)),
    Operator.MAXIMUM: lambda xp, a, b, g: (g * (a >= b), g * (a < b)),
    Operator.MINIMUM: lambda xp, a, b, g: (g * (a <= b), g * (a > b)),
    Operator.AVERAGE: lambda xp, a, b, g: (g / 2, g / 2),
    **dict.fromkeys(COMPARISONS, lambda xp, a, b, g: (xp.zeros_like(g),) * 2),
}


@register("layer", kArithmetic=795)
class Arithmetic(Layer):
    """x op y of two sources, or of one source and a ``number``: elementwise, or the product of matrices.

    Axes of length 1 are repeated, as in numpy. MATMUL multiplies the matrices of the last two axes of each row, (B,
    ..., n, k) by (B, ..., k, m). MAXIMUM and MINIMUM of equal numbers pass the gradient to the first source.
    Comparisons give 1 or 0 and have the gradient 0. With ``swapped`` the number comes first, as in 1 - x.
    """

    class Conf(Settings):
        """Settings of kArithmetic."""

        operator: Operator = required(
            "ADD, SUBTRACT, MULTIPLY, DIVIDE, POWER, MATMUL, MAXIMUM, MINIMUM, AVERAGE, or a comparison: EQUAL, "
            "NOT_EQUAL, GREATER, GREATER_EQUAL"
        )
        number: float | None = setting(None, "the second operand, in place of a second source")
        swapped: bool = setting(False, "whether the number is the first operand")

        def faults(self) -> Any:
            if self.number is not None and self.operator is Operator.MATMUL:
                yield Fault("MATMUL takes two sources, and no number", "number")
            if self.swapped and (self.number is None or self.operator is Operator.POWER):
                yield Fault("swapped is for a number that is no exponent", "swapped")

    settings: Conf
    cut = Cut(Connection.kOneToOne, by_space=True)
    keeps = Keeps(feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.expect_sources(1 if self.settings.number is not None else 2)
        if self.settings.operator in LINEAR and not self.runs_user_code:
            self.keeps = Keeps(sources=0, feature=False)
        if self.settings.number is None:
            self.shape = self._joint_shape(*self.source_shapes)

    def _joint_shape(self, first: Shape, second: Shape) -> Shape:
        """Return the shape of two sources broadcast as in numpy."""
        matrices = self.settings.operator is Operator.MATMUL
        if first != second or matrices:
            self.cut = Cut(gathered_because="has sources of different shapes")
        axes = [max(sizes) for sizes in zip(first, second, strict=False)]
        fit = [a == b or 1 in (a, b) for a, b in zip(first, second, strict=False)]
        if matrices:
            fits = len(first) == len(second) > 2 and all(fit[:-2]) and first[-1] == second[-2]
            axes[-2:] = [first[-2], second[-1]]
        else:
            fits = len(first) == len(second) and all(fit)
        remedy = "(B, ..., n, k) times (B, ..., k, m)" if matrices else "shapes that differ in axes of length 1 only"
        self.expect_alike(fits, f"give {remedy}", verb="combines")
        return tuple(axes)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def _operands(self, sources: Arrays) -> tuple[Any, Any]:
        number = self.settings.number
        if number is None:
            return sources[0], sources[1]
        constant = sources[0].dtype.type(number)
        return (constant, sources[0]) if self.settings.swapped else (sources[0], constant)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        y = COMPUTE[self.settings.operator](ctx.ops.xp, *self._operands(sources))
        dtype = sources[0].dtype if sources[0].dtype.kind == "f" else np.float32
        return Output(y.astype(dtype) if y.dtype == bool else y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        gradients: Sequence[Any] = DERIVE[self.settings.operator](ctx.ops.xp, *self._operands(sources), grad)
        if self.settings.number is not None:
            gradients = (gradients[1 if self.settings.swapped else 0],)
        return [
            _summed(gradient, source, ctx.ops) if need else None
            for gradient, source, need in zip(gradients, sources, needs, strict=True)
        ], ()


def _summed(gradient: Array, source: Array, ops: Ops) -> Array:
    """Sum a gradient over the axes along which a source was broadcast, back to the source's shape."""
    axes = tuple(axis for axis, size in enumerate(source.shape) if size == 1 != gradient.shape[axis])
    summed = gradient.sum(axis=axes, keepdims=True) if axes else gradient
    return summed.astype(source.dtype, copy=False)


_ITEM = re.compile(
    r"(?P<int>-?\d+)|(?P<new>new)|(?P<all>\.\.\.)|(?P<slice>-?\d*:-?\d*(:-?\d*)?)|\[(?P<list>\s*-?\d+(\s*,\s*-?\d+)*\s*)\]"
)
_COMMA = re.compile(r",(?![^\[]*\])")  # between items, not in a list


@register("layer", kIndex=796)
class Index(Layer):
    """A slice of the source, in numpy's syntax for the axes after the batch: "0", "1:3", "..., -1", "new", "[2, 0]".

    There is an item for each axis, separated by commas:

    - a number selects one index and removes the axis,
    - start:stop:step selects several indices,
    - a list selects the indices in it; there may be one list,
    - "..." stands for all axes without an item,
    - "new" adds an axis of length 1.
    """

    class Conf(Settings):
        """Settings of kIndex."""

        index: str = required('an item for each axis after the batch, such as "1:3, 0"')

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="takes some of the features of a row")
    taps: Taps | None = None  # of a list along ``axis`` of what the other items take

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        items = [self._item(item.strip()) for item in _COMMA.split(self.settings.index)]
        lists = [place for place, item in enumerate(items) if isinstance(item, list)]
        self.key = (slice(None), *(slice(None) if isinstance(item, list) else item for item in items))
        source = self.source_shapes[0]
        try:
            self.shape = np.broadcast_to(np.zeros(1, np.uint8), source)[self.key].shape
        except (IndexError, ValueError) as error:
            text = f"takes [{self.settings.index}] of rows of {shape_text(source[1:])}: {error}"
            raise self.fail(text, field="index") from None
        if 0 in self.shape:
            raise self.fail(f"[{self.settings.index}] of {shape_text(source[1:])} is empty", field="index")
        if lists:
            self._take_list(items, *lists)

    def _take_list(self, items: Sequence[Any], place: int, *more: int) -> None:
        kept = [not isinstance(item, int) for item in items]
        self.axis = 1 + sum(kept[:place]) if ... not in items[:place] else len(self.shape) - sum(kept[place:])
        size, points = self.shape[self.axis], np.array(items[place])
        if more or points.min() < -size or points.max() >= size:
            fault = "has several lists; take one after the other" if more else f"is outside of an axis of {size}"
            raise self.fail(f"[{self.settings.index}] {fault}", field="index")
        self.taps = Taps(points[:, None] % size, np.ones((len(points), 1)), size)
        self.shape = (*self.shape[: self.axis], len(points), *self.shape[self.axis + 1 :])

    def _item(self, text: str) -> Any:
        found = _ITEM.fullmatch(text)
        if found is None:
            raise self.fail(f"{text!r} is no item of an index; write 0, 1:3, [0, 2], new or ...", field="index")
        if found["int"]:
            return int(text)
        if found["slice"]:
            return slice(*(int(part) if part else None for part in text.split(":")))
        if found["list"]:
            return list(map(int, found["list"].split(",")))
        return None if found["new"] else ...

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        y = sources[0][self.key]
        return Output(contiguous(y) if self.taps is None else weighted(y, self.axis, self.taps, ctx.ops))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        gradient = ctx.ops.xp.zeros_like(sources[0])
        gradient[self.key] = grad if self.taps is None else weighted(grad, self.axis, self.taps.transposed, ctx.ops)
        return (gradient,), ()
