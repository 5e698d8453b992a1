"""The node of an ONNX graph for which layers are made: their names, params and constants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.values import (
    LARGEST,
    Constant,
    NotImportable,
    Room,
    Value,
    integers,
    is_same,
    without_repeats,
)
from dsinga.base.errors import UserError
from dsinga.nn.writing.reshaping import reshaped
from dsinga.nn.writing.symbol import Symbol

MOST_LAYERS, MOST_LETTERS = 4000, 200  # of a net; of the name of one


class MadeLayers:
    """What the layers have in common that are made of a graph: their names and params.

    Attributes:
        batch: the number of records that shapes count with.
        version: that of the operators (opset).
        room: what may still be made of the numbers of the file.
        given_batch: the number of records that the file says, None where it leaves it open.
        source: the feature of the first input.
        arrays: the params by the name of the layer and the role.
        given: the constants of the graph of all params, and their arrays, those of other layers included.
        vectors: params that are the same for all records, and their features, by their names in the file.
        parts: for features that have one number along an axis, by their ids: the whole, the axis, and which one.
        stacks: the number of the last recurrent layer of each module.
        last_states: for last cell states of an LSTM, by their ids: the states h, and the feature of both.
    """

    source: Symbol

    def __init__(self, batch: int, version: int, room: Room):
        self.batch, self.version, self.room = batch, version, room
        self.given_batch: int | None = None
        self.arrays: dict[tuple[str, str], np.ndarray] = {}
        self.given: dict[tuple[str, str], tuple[Constant, np.ndarray]] = {}
        self.vectors: dict[str, tuple[np.ndarray, Symbol]] = {}
        self.parts: dict[int, tuple[Value, int, int]] = {}
        self.stacks: dict[str, int] = {}
        self.last_states: dict[int, tuple[Symbol, Symbol]] = {}
        self._names: dict[str, int] = {}  # with the number of the last one made of it
        self._owners: dict[str, tuple[np.ndarray, str]] = {}

    def unique(self, base: str) -> str:
        """Return a name that no other layer has, ``base`` for the first one that asks for it.

        Long ones lack their middle. Raises UserError for more than MOST_LAYERS.
        """
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

    def owner_of(self, constant: Constant, array: np.ndarray, own: str) -> str:
        """Return the name of the param that has these numbers of a constant: ``own`` for the first layer."""
        if not constant.name:
            return own
        known = self._owners.setdefault(f"{constant.name} {array.shape}", (array, own))
        return known[1] if is_same(known[0], array) else own

    def is_owned(self, constant: Constant, array: np.ndarray) -> bool:
        """Whether a layer has these numbers of a constant as its param."""
        known = self._owners.get(f"{constant.name} {array.shape}")
        return known is not None and is_same(known[0], array)


class NodePlace:
    """A node, and what is made of its graph so far.

    Attributes:
        made: what is made of the graph.
        node: the node (onnx.NodeProto).
        base: the name of its first layer.
    """

    def __init__(self, made: MadeLayers, node: Any, base: str):
        self.made, self.node, self.base = made, node, base

    @property
    def batch(self) -> int:
        """The number of records that shapes count with."""
        return self.made.batch

    @property
    def version(self) -> int:
        """The version of the operators."""
        return self.made.version

    def name(self, suffix: str = "") -> str:
        """Return the name of a further layer of the node."""
        return self.made.unique(self.base + suffix)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node: a number, a text, an array, a list of these, or ``default``."""
        from onnx import helper, numpy_helper

        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                if attribute.HasField("t"):
                    return numpy_helper.to_array(value)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def integers(self, name: str, given: Any = None) -> Any:
        """Return integers, which are an input of the node, or in older versions an attribute; None for neither."""
        return self.attribute(name) if given is None else integers(given, name)

    def layer(
        self,
        make: Callable[..., Any] | str,
        params: Mapping[str, tuple[Constant, np.ndarray] | None],
        suffix: str = "",
        **settings: Any,
    ) -> Any:
        """Return a layer with these params.

        Args:
            make: the function of ``nn`` that makes the layer, or a layer type.
            params: by the role of each param of the layer, in order: the constant of the graph that it comes from, and
                its numbers in the shape of the layer's param; None for a param that the graph lacks, of which the
                numbers stay what they are (such as the scale of a normalisation without one), and which does not train.
            suffix: what follows the name of the node's first layer.
            settings: of the layer.

        A constant that another layer has in the same shape is one param of both.
        """
        layer_name = self.name(suffix)
        confs: list[dict[str, Any]] = []
        for role, given in params.items():
            own = f"{layer_name}_{role}"
            if given is None:
                confs.append({"static": True})
                continue
            constant, array = self.made.given[layer_name, role] = given
            owner = self.made.owner_of(constant, array, own)
            confs.append({} if owner == own else {"name": own, "share_from": owner})
            if owner == own:
                self.made.room.take(4 * array.size)
                self.made.arrays[layer_name, role] = array
        make = functools.partial(nn.Layer, make) if isinstance(make, str) else make
        return make(name=layer_name, param=confs if any(confs) else None, **settings)

    def vector(self, x: Constant, suffix: str = "") -> Value:
        """Return a constant as a tensor that is the same for all records: a param.

        It trains if a name of the file says that it is a param; else it keeps its numbers.
        """
        array, dtype = x.array, x.array.dtype
        if x.is_param:  # repeated axes are those of the operators that take it
            array = without_repeats(array)
        if array.size > LARGEST:
            raise NotImportable(f"of more than {LARGEST} numbers")
        if x.part is not None:
            whole, items = x.part
            table = self.vector(whole).symbol
            symbol = table[(slice(None), *items)]
            if symbol is not table:
                symbol.builder.name = self.name(".part")
            return Value(reshaped(self, symbol, array.shape, ".aligned"), array.shape, None, dtype)
        known = self.made.vectors.get(x.name) if x.is_param else None
        if known is not None and np.array_equal(known[0].ravel(), array.ravel(), equal_nan=True):
            return Value(reshaped(self, known[1], array.shape, ".aligned"), array.shape, None, dtype)
        rows = array.shape or (1,)
        base = NodePlace(self.made, self.node, x.name) if x.is_param else self
        settings: dict[str, Any] = {"num_output": rows[-1], "leading": list(rows[:-1])}
        settings |= {} if x.is_param else {"trainable": False}
        own = x if x.is_param else Constant(array)  # fixed numbers are those of one layer
        params = {"vector": (own, np.asarray(array, np.float32).reshape(rows))}
        builder = base.layer("kLearnedVector", params, "" if x.is_param else f".constant{suffix}", **settings)
        symbol = builder(self.made.source)
        if x.is_param:
            self.made.vectors[x.name] = array, symbol
        return Value(symbol, array.shape, None, dtype)

    def value(self, symbol: Symbol) -> Value:
        """Return the tensor of a feature whose first axis is the batch."""
        rows = symbol.rows
        assert rows is not None
        return Value(symbol, (self.batch, *rows))
