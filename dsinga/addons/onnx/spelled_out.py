"""Recognises layers that ONNX files spell out in several nodes, such as a product and a sum for a dense layer.

A pattern is a number, a tensor's name, a list of alternative patterns, or an operator with its inputs' patterns. The
inputs of Add come in any order; Mul is a product of any number of factors, in any order.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.onnx.values import Constant

X = "x"
MEAN, ROOT_2 = ("ReduceMean", X), math.sqrt(2)
CENTRED = ("Sub", X, MEAN)


def root_of_mean_square(x: Any) -> Any:
    """Return the pattern of √(mean of x² + epsilon)."""
    return ("Sqrt", ("Add", ("ReduceMean", [("Pow", x, 2.0), ("Mul", x, x)]), "epsilon"))


def one_by(pattern: Any) -> Any:
    """Return a pattern that matches both ways to write 1 / ``pattern``: the operators Reciprocal and Div."""
    return [("Reciprocal", pattern), ("Div", 1.0, pattern)]


CUBE = [("Mul", ("Pow", X, 3.0), 0.044715), ("Mul", X, X, X, 0.044715)]
DEVIATION, SIZE = root_of_mean_square(CENTRED), root_of_mean_square(X)
NORMALISED = [("Mul", ("Div", CENTRED, DEVIATION), "scale"), ("Mul", CENTRED, one_by(DEVIATION), "scale")]
GROUPED = ("InstanceNormalization", ("Reshape", X, "groups"), "ones", "zeros")
# The operator that a pattern is, and the names of its inputs in order.
PATTERNS: Sequence[tuple[Any, str, str]] = (
    (("Add", ("MatMul", X, "weight"), "bias"), "Dense", "x weight bias"),
    (("Mul", X, 0.5, ("Add", ("Erf", [("Div", X, ROOT_2), ("Mul", X, 1 / ROOT_2)]), 1.0)), "Gelu", "x"),
    (("Mul", X, 0.5, ("Add", ("Tanh", ("Mul", ("Add", X, CUBE), math.sqrt(2 / math.pi))), 1.0)), "Gelu tanh", "x"),
    (("Mul", X, ("Sigmoid", X)), "Swish", "x"),
    (("Mul", X, ("Tanh", ("Softplus", X))), "Mish", "x"),
    (("Mul", X, ("HardSigmoid", X)), "HardSwish", "x"),
    (("Add", NORMALISED, "bias"), "LayerNormalization", "x scale bias"),
    (("Add", ("Mul", ("Reshape", GROUPED, "shape"), "scale"), "bias"), "GroupNormalization", "x scale bias"),
    (("Mul", ("Div", X, SIZE), "scale"), "RMSNormalization", "x scale"),
    (("Mul", X, one_by(SIZE), "scale"), "RMSNormalization", "x scale"),
)


class Matcher:
    """Finds patterns among a graph's nodes."""

    def __init__(self, nodes: Sequence[Any], constants: Mapping[str, Constant], outputs: Sequence[str]):
        self.constants = constants
        self.made_by = {name: node for node in nodes for name in node.output}
        self.takers: dict[str, list[int]] = defaultdict(list)
        for node in nodes:
            for name in node.input:
                self.takers[name].append(id(node))
        for name in outputs:
            self.takers[name].append(0)

    def bindings(self, pattern: Any, name: str, bound: dict[str, str]) -> Iterator[dict[str, str]]:
        """Match a pattern with a tensor; yield the tensors of its names and inner nodes, in each way it fits."""
        if isinstance(pattern, list):
            for one in pattern:
                yield from self.bindings(one, name, bound)
        elif isinstance(pattern, float):
            constant = self.constants.get(name)
            if constant is not None and constant.array.size == 1 and np.isclose(constant.array.item(), pattern, 1e-4):
                yield bound
        elif isinstance(pattern, str):
            if bound.get(pattern, name) == name:
                yield {**bound, pattern: name}
        elif (node := self.made_by.get(name)) is not None and node.op_type == pattern[0]:
            inputs, inner = self.factors(node, len(pattern) - 1) if node.op_type == "Mul" else ([*node.input], [name])
            bound = {**bound, **{f" {output}": "" for output in inner}}
            count = len(pattern) - 1
            if node.op_type not in ("Add", "Mul"):
                yield from self.all_of(pattern[1:], inputs[:count], bound)
            elif len(inputs) == count:
                for order in itertools.permutations(inputs):
                    yield from self.all_of(pattern[1:], order, bound)

    def all_of(self, patterns: Sequence[Any], names: Sequence[str], bound: dict[str, str]) -> Iterator[dict[str, str]]:
        """Match several patterns with as many tensors; yield the tensors of their names, in each way they fit."""
        if not patterns or not names:
            yield from [] if patterns else [bound]
            return
        for more in self.bindings(patterns[0], names[0], bound):
            yield from self.all_of(patterns[1:], names[1:], more)

    def factors(self, node: Any, count: int) -> tuple[list[str], list[str]]:
        """Collect at most ``count`` factors of a product, and the results of its nodes."""
        factors, inner = [*node.input], [node.output[0]]
        for name in node.input:
            before = self.made_by.get(name)
            if before is not None and before.op_type == "Mul" and len(self.takers[name]) == 1 and len(factors) < count:
                more, results = self.factors(before, count - len(factors) + 1)
                at = factors.index(name)
                factors[at : at + 1] = more
                inner += results
        return factors, inner

    def only_inside(self, root: str, bound: Mapping[str, str]) -> bool:
        """Whether only nodes of a pattern use the results of its inner nodes."""
        inner = [name[1:] for name in bound if name[0] == " "]
        nodes = {id(self.made_by[name]) for name in inner}
        return all(name == root or nodes.issuperset(self.takers[name]) for name in inner)


def recognised(nodes: Sequence[Any], constants: Mapping[str, Constant], outputs: Sequence[str]) -> list[Any]:
    """Replace each layer that a graph spells out in several nodes by one node; return all nodes."""
    matcher = Matcher(nodes, constants, outputs)
    starts = defaultdict(list)
    for pattern, operator, names in PATTERNS:
        starts[pattern[0]].append((pattern, operator, names))
    result = []
    for node in nodes:
        ways = (
            made
            for pattern, operator, names in starts[node.op_type]
            for bound in matcher.bindings(pattern, node.output[0], {})
            if matcher.only_inside(node.output[0], bound)
            and (made := whole(matcher, node, operator, [bound[name] for name in names.split()], bound)) is not None
        )
        result.append(next(ways, node))
    return result


def whole(matcher: Matcher, root: Any, operator: str, inputs: Sequence[str], bound: Mapping[str, str]) -> Any:
    """Create the single node for a pattern; None if its params and settings do not match the operator."""
    from onnx import helper

    params = [matcher.constants.get(name) for name in inputs[1:]]
    inner = [matcher.made_by[name[1:]] for name in bound if name[0] == " "]
    settings: dict[str, Any] = {}
    if any(param is None or param.array.dtype.kind != "f" for param in params):
        return None
    operator, _, form = operator.partition(" ")
    if operator == "Dense":
        weight, bias = (param.array.shape for param in params if param is not None)
        if len(weight) != 2 or bias != weight[1:]:
            return None
    if operator == "HardSwish":
        numbers = numbers_of(inner, "HardSigmoid")
        if not np.isclose([numbers.get("alpha", 0.2), numbers.get("beta", 0.5)], [1 / 6, 0.5], 1e-4).all():
            return None
    if operator in ("LayerNormalization", "RMSNormalization"):
        epsilon = matcher.constants.get(bound["epsilon"])
        axes = {axes_of_mean(node, matcher.constants) for node in inner if node.op_type == "ReduceMean"}
        if epsilon is None or epsilon.array.size != 1 or len(axes) != 1 or len(axis := axes.pop()) != 1:
            return None
        sizes = {size for param in params if param is not None for size in (param.array.size, *param.array.shape[-1:])}
        if len(sizes) != 1 or sizes == {1}:  # the axis has one scale for each number, so that it is the last one
            return None
        settings = {"axis": axis[0], "epsilon": float(epsilon.array.item())}
    if operator == "GroupNormalization":
        groups, ones, zeros = (matcher.constants.get(bound[name]) for name in ("groups", "ones", "zeros"))
        if groups is None or ones is None or zeros is None or (ones.array != 1).any() or zeros.array.any():
            return None
        shapes = [param.array.shape for param in params if param is not None]
        if groups.array.tolist() != [0, ones.array.size, -1] or any(math.prod(shape[1:]) != 1 for shape in shapes):
            return None
        settings = {"num_groups": ones.array.size, "epsilon": numbers_of(inner, GROUPED[0]).get("epsilon", 1e-5)}
    settings |= {"approximate": form} if form else {}
    path = root.name.rpartition("/")[0]
    made = helper.make_node(
        operator, inputs, root.output, f"{path}/{operator}" if "/" in root.name else root.name, **settings
    )
    made.metadata_props.extend(root.metadata_props)
    return made


def numbers_of(nodes: Sequence[Any], operator: str) -> dict[str, float]:
    """Return the numeric attributes of an operator's node."""
    node = next(node for node in nodes if node.op_type == operator)
    return {attribute.name: attribute.f for attribute in node.attribute}


def axes_of_mean(node: Any, constants: Mapping[str, Constant]) -> tuple[int, ...]:
    """Return the axes of a ReduceMean that keeps them; () if it does not, or if they are unknown."""
    if any(attribute.name == "keepdims" and not attribute.i for attribute in node.attribute):
        return ()
    if len(node.input) > 1:
        given = constants.get(node.input[1])
        return () if given is None else tuple(map(int, given.array.ravel()))
    return tuple(axis for attribute in node.attribute if attribute.name == "axes" for axis in attribute.ints)
