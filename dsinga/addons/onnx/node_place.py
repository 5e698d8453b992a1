"""The node of an ONNX graph that is being converted to layers, with their names, params and constants."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.folding import folded
from dsinga.addons.onnx.naming import is_lone, is_made_up, plain
from dsinga.addons.onnx.values import (
    LARGEST,
    Constant,
    Room,
    decimal,
    is_bound,
    is_same,
    without_repeats,
)
from dsinga.base.errors import UserError
from dsinga.nn.writing.composed import HIDDEN
from dsinga.nn.writing.reshaping import NoLayer, made, reshaped
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import Tensor

MOST_LAYERS, MOST_LETTERS = 4000, 200  # of a net; of the name of one
MOST_REPEATED = 1 << 22  # numbers of a repeated param with parts in layers


class MadeLayers:
    """The state shared by the layers made from a graph: their names and params.

    Attributes:
        room: how much may still be computed from the file.
        given_batch: the number of records in the file, or None.
        source: the first input's feature.
        vectors: the features of params that all records share, by name.
        uses: for each trained array, the layers' params with its numbers, with constants.
        offsets: an array's first number among all numbers, if layers have parts of it.
        orders: codes by the id of the feature that orders them.
        ordered: ordered codes by the id of the codes.
        kept: arrays that keep their numbers, though they may be params.
        parts: for features with one number along an axis, by id: the whole, the axis, and its place.
        stacks: the number of each module's last recurrent layer.
        last_states: for an LSTM's last cell states, by id: the states h, and the feature of both.
    """

    source: Symbol

    def __init__(self, batch: int, version: int, room: Room):
        self.batch, self.version, self.room = batch, version, room
        self.given_batch: int | None = None
        self.arrays: dict[tuple[str, str], np.ndarray] = {}
        self.given: dict[tuple[str, str], tuple[Constant, np.ndarray]] = {}
        self.vectors: dict[str, Tensor] = {}
        self.uses: dict[str, dict[str, Constant]] = {}
        self.offsets: dict[str, int] = {}
        self.kept: dict[str, None] = {}
        self.orders: dict[int, Symbol] = {}
        self.ordered: dict[int, Symbol] = {}
        self.operators: Mapping[str, Callable[..., Any]] = {}
        self.parts: dict[int, tuple[Tensor, int, int]] = {}
        self.stacks: dict[str, int] = {}
        self.last_states: dict[int, tuple[Symbol, Tensor]] = {}
        self._names: dict[str, int] = {}  # with the number of the last one made of it
        self._owners: dict[str, tuple[np.ndarray, str]] = {}

    def unique(self, base: str) -> str:
        """Return a name that no other layer has, ``base`` for the first request."""
        base = base if len(base) <= MOST_LETTERS else f"{base[: MOST_LETTERS // 2]}{base[-MOST_LETTERS // 2 :]}"
        if len(self._names) > MOST_LAYERS:
            raise UserError(f"the net has more than {MOST_LAYERS:,} layers; export it in parts")
        name, number = base, self._names.get(base, 0)
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names[base] = number
        self._names[name] = self._names.get(name, 0)
        return name

    def label(self, constant: Constant) -> str:
        """Identify a constant by its numbers, as text; "" for numbers of only one layer."""
        if constant.name or not constant.is_param:
            return constant.name
        return f"parts {hashlib.sha256(self.places(constant).tobytes()).hexdigest()}"

    def owner_of(self, constant: Constant, array: np.ndarray, own: str) -> str:
        """Return the name of the param with these numbers of a constant; ``own`` for the first layer."""
        if not (label := self.label(constant)):
            return own
        known = self._owners.setdefault(f"{label} {array.shape}", (array, own))
        return known[1] if is_same(known[0], array) else own

    def use(self, constant: Constant, owner: str) -> None:
        """Note that the layer ``owner`` uses a constant in its params."""
        for name in constant.params() if constant.is_param else ():
            self.uses.setdefault(name, {}).setdefault(owner, constant)

    def untied(self) -> list[str]:
        """List the file's params that would become several params, trained apart, although they share numbers."""
        several = {name: [*uses.values()] for name, uses in self.uses.items() if len(uses) > 1}
        places = {name: [np.unique(self.places(x)) for x in constants] for name, constants in several.items()}
        return [name for name, each in places.items() if np.unique(np.concatenate(each)).size < sum(map(len, each))]

    def places(self, constant: Constant) -> np.ndarray:
        """Locate a constant's numbers: places in the params, numbered over all params."""

        def leaf(x: Constant) -> Constant:
            if 0 in x.array.strides and x.array.size > MOST_REPEATED:
                raise NoLayer(f"of a param that is repeated, with more than {MOST_REPEATED:,} numbers")
            first = self.offsets.setdefault(x.name, self.offsets.get("", 0))
            self.offsets[""] = max(self.offsets.get("", 0), first + x.array.size)
            return Constant(np.arange(x.array.size).reshape(x.array.shape) + first)

        def apply(node: Any, operands: Sequence[Any], output: int) -> Constant:
            if node.op_type == "Concat":  # numbers that do not train are no one's
                operands = [Constant(np.full(x.array.shape, -1)) if x.dtype.kind == "f" else x for x in operands]
            return folded(node, operands, self.version, Room(math.inf, math.inf))[output]

        places: np.ndarray = constant.computed(leaf, apply).array
        return places[places >= 0]

    def is_owned(self, constant: Constant, array: np.ndarray) -> bool:
        """Whether a layer already has these numbers of a constant as its param."""
        known = self._owners.get(f"{constant.name} {array.shape}")
        return known is not None and is_same(known[0], array)


class NodePlace:
    """A node that is being turned into layers; ``made`` is the state shared by all nodes of its graph."""

    def __init__(self, made: MadeLayers, node: Any, base: str):
        self.made, self.node, self.base = made, node, base

    @property
    def batch(self) -> int:
        """The batch size that stands for any number of records in shapes."""
        return self.made.batch

    @property
    def version(self) -> int:
        """The version of ONNX's operators that the file uses."""
        return self.made.version

    def name(self, suffix: str = "") -> str:
        """Return a unique name for the node's next layer."""
        return self.made.unique(self.base + suffix)

    def attributes(self, names: Container[str]) -> dict[str, Any]:
        """Return the node's attributes with these names: numbers, texts, arrays, lists of them."""
        from onnx import helper, numpy_helper

        values: dict[str, Any] = {}
        for attribute in self.node.attribute:
            if attribute.name in names:
                value = helper.get_attribute_value(attribute)
                value = numpy_helper.to_array(value) if attribute.HasField("t") else value
                values[attribute.name] = plain_value(value)
        return values

    def call(self, make: Callable[..., Any], operands: Sequence[Any], rank: int = 0) -> Any:
        """Call an operator's function with operands and the node's attributes that are its arguments.

        With a ``rank``, an axis of such a tensor is counted from the end instead.
        """
        names = inspect.signature(make).parameters
        operands = [replace(x, place=self) if isinstance(x, Tensor) else x for x in operands]
        attributes = self.attributes(names)
        if rank and attributes.get("axis", -1) >= 0 and self.node.op_type != "Gather":
            attributes["axis"] -= rank
        return make(*([self] if "place" in names else []), *operands, **attributes)

    def keep(self, x: Any) -> None:
        """Note that a constant is used as numbers, so it is not trained, though it may be a param."""
        if isinstance(x, Constant) and x.is_param:
            self.made.kept |= dict.fromkeys(x.params())

    def layer(
        self,
        make: Callable[..., Any] | str,
        params: Mapping[str, tuple[Constant, np.ndarray] | None],
        suffix: str = "",
        **settings: Any,
    ) -> Any:
        """Create a layer with params from the file.

        ``make`` is a function of ``nn`` or a layer type. ``params`` maps roles, in order, to the graph's constant and
        its numbers in the layer's shape, or to None for a param that the graph lacks, which does not train.

        Layers that use one constant in the same shape share the param.
        """
        layer_name = self.name(suffix)
        confs: list[dict[str, Any]] = []
        for role, given in params.items():
            if given is None:
                confs.append({"static": True})
                continue
            constant, array = self.made.given[layer_name, role] = given
            own, conf = f"{layer_name}_{role}", dict[str, Any]()
            if constant.is_param and is_lone(constant.name) and plain(constant.name) not in (self.base, layer_name):
                own = self.made.unique(plain(constant.name))
                conf = {"name": own}
            owner = self.made.owner_of(constant, array, own)
            conf = conf if owner == own else {"name": own, "share_from": owner}
            confs.append(conf | ({"static": True} if constant.kind == "BUFFER" else {}))
            if owner == own:
                self.made.room.take(4 * array.size)
                self.made.arrays[layer_name, role] = array
            self.made.use(constant, owner)
            if constant.kind == "FOLDED":
                self.made.kept[constant.name] = None
        return made(make, name=layer_name, param=confs if any(confs) else None, **settings)

    def vector(self, x: Constant, suffix: str = "") -> Tensor:
        """Turn a constant into a tensor that all records share: a param.

        It trains if the file names it as a param; otherwise it keeps its numbers.
        """
        array = without_repeats(x.array) if x.is_param else x.array  # operators repeat these axes themselves
        if array.size > LARGEST:
            raise NoLayer(f"of more than {LARGEST} numbers")
        if not x.is_param:
            if (
                x.kind == "FOLDED"
                or x.name.startswith("onnx::")
                or (not x.kind and not is_made_up(x.name) and x.dtype.kind == "f")
            ):
                self.made.kept[x.name] = None
            return self._learned(self, Constant(array), f".constant{suffix}", trainable=False)  # of one layer

        def leaf(param: Constant) -> Tensor:
            if param.name not in self.made.vectors:
                self.made.vectors[param.name] = self._learned(NodePlace(self.made, self.node, param.name), param, "")
            return self.made.vectors[param.name]

        def apply(node: Any, given: Sequence[Any], output: int) -> Any:
            result = NodePlace(self.made, node, self.base).call(self.made.operators[node.op_type], given)
            return result[output] if isinstance(result, list) else result

        symbol = reshaped(self, x.computed(leaf, apply).symbol, array.shape or (1,), ".aligned")
        return Tensor(self, symbol, array.shape, None, array.dtype)

    def _learned(self, base: NodePlace, x: Constant, suffix: str, **settings: Any) -> Tensor:
        rows = x.array.shape or (1,)
        params = {"vector": (x, np.asarray(x.array, np.float32).reshape(rows))}
        settings |= {"num_output": rows[-1], "leading": list(rows[:-1])}
        symbol = base.layer("kLearnedVector", params, suffix, **settings)(self.made.source)
        return Tensor(self, symbol, x.array.shape, None, x.array.dtype)

    def same_for_records(self, x: Constant, axis: int) -> Constant:
        """Reduce a constant made for a batch to length 1 along the batch axis, counted from the end."""
        array, axis = x.array, axis + x.array.ndim
        if axis < 0 or array.shape[axis] == 1 or array.shape[axis] not in (self.batch, self.made.given_batch):
            return x
        first = array.take([0], axis)
        if array.strides[axis] and (x.is_param or not (array == first).all()):
            raise NoLayer("of constants that differ among the records of a batch")
        return replace(x, array=first)

    def tensor(self, x: Any, others: Sequence[Any] = ()) -> Tensor:
        """Turn an operand into a tensor for layers; ``others`` show the batch axis."""
        if isinstance(x, Tensor):
            return x
        axes = [other.batch_axis - other.rank for other in others if getattr(other, "batch_axis", None) is not None]
        return self.vector(self.same_for_records(x, axes[0]) if axes else x)

    def operand(self, x: Any, others: Sequence[Any]) -> Tensor | float:
        """Turn an operand into a tensor for layers, or a number; named constants become params."""
        if isinstance(x, (Tensor, float)):
            return x
        x = x if isinstance(x, Constant) else Constant(x)
        if is_bound(x.array):
            self.keep(x)  # a softmax makes 0 of it
            x = Constant(np.maximum(x.array, np.float32(HIDDEN)))
        elif x.array.size == 1 and not x.is_param:
            if x.array.ndim <= max((other.rank for other in others if isinstance(other, Tensor)), default=0):
                return decimal(x.array.reshape(()))
        return self.tensor(x, others)

    def array(self, x: Any) -> np.ndarray | None:
        """Return the numbers of a constant that is no param; None for other operands."""
        return x.array if isinstance(x, Constant) and not x.is_param else None

    def constant(self, array: np.ndarray, suffix: str = "") -> Tensor:
        """Turn numbers that all records share into a param that keeps its values."""
        return self.vector(Constant(array), suffix)


def plain_value(value: Any) -> Any:
    """Convert an attribute's value to Python's texts and decimal numbers."""
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, float):
        return decimal(value)
    return value.decode() if isinstance(value, bytes) else value
