"""Traces a PyTorch module: runs its forward on tensors without numbers; each operation becomes a layer."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.convert.torch_tensors import (
    FREEZE,
    VIEWS,
    TracedTensor,
    change_views,
    fault_of,
    relate_views,
    replaced,
    tensors_in,
    traced_in,
    without_numbers,
)
from dsinga.convert.weights import CONSTANT
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.symbol import Symbol, ancestors
from dsinga.nn.writing.tensor import BOOL, FLOAT, Tensor, batched

# Modules are traced here and not by torch.export: its graphs have 25 nodes for one MultiheadAttention, keep in-place
# operations, and end at the first branch on a number, where this trace names all unsupported operations at once.

# Operations that need numbers, which a traced tensor lacks.
NUMBERS = {"__bool__", "__contains__", "__float__", "__index__", "__int__", "item", "numpy", "tolist"}
BOOLEAN = {"eq", "ne", "gt", "ge", "lt", "le", "and", "or", "invert", "bool"}  # operations with truth values
BOOLEAN |= {"logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "isnan"}


class Trace:
    """One run of a module's forward, which collects the layers and params of the model.

    Attributes:
        fused: whether attention is one layer where possible.
        faults: what is unsupported.
        source: the feature of the first input.
        constants: values of params that are not the module's, by name.
        stand_ins: replacements of modules for functions with params, by params and settings.
        owners: layers' param names, by the id of the module's param and a GRU's gate, "" for the whole param.
        sources: the origin of tensors with layers made later, by source. It is a param's name and value, or the
            function that makes a layer's last states, and "h" or "c".
    """

    def __init__(
        self, module: torch.nn.Module, operations: Mapping[str, Any], modules: Mapping[str, Any], training: bool,
        batch: int, fused: bool = True,
    ):  # fmt: skip
        self.module, self.training, self.batch, self.fused = module, training, batch, fused
        self.operations, self.modules = operations, modules
        self.faults: dict[str, None] = {}
        self.source: Symbol | None = None
        self.constants: dict[str, Any] = {}
        self.owners: dict[tuple[int, str], str] = {}
        self.sources: dict[Any, tuple[Any, Any]] = {}
        self.param_names = {id(param): name for name, param in module.named_parameters()}
        self.stand_ins: dict[Any, Any] = {}
        self._scopes = [""]
        self._operation: tuple[str, str] | None = None  # the path and the text of a module that is an operation
        self._names = {path for path, _ in module.named_modules()}  # names that layers of modules get
        self.taken: set[str] = set()
        self._layers: dict[tuple[int, str], Any] = {}
        self.with_params: set[int] = set()
        self._learning: set[int] = set()  # the ids of those with params that move
        self._changed: list[torch.Tensor] = []  # tensors with numbers that an operation on traced ones changed

    def run(self, inputs: Mapping[str, Symbol]) -> Any:
        """Run the forward on these features; return its results. Raises UserError for a forward that fails."""
        self.source = next(iter(inputs.values()))
        place = ModulePlace(self, "")
        tensors = {name: self.wrapped(batched(place, symbol)) for name, symbol in inputs.items()}
        with self._intercepted(), torch.enable_grad():
            try:
                result = self.module(**tensors)
            except Exception as error:
                if self.faults:
                    return None
                raise UserError(
                    f"the forward of {type(self.module).__name__} fails for tensors without numbers, as from_torch "
                    f"calls it: {type(error).__name__}: {error}"
                ) from error
        if why := fault_of(traced_in([result])):
            self.faults[f"a result {why}".replace(" on ", " of ", 1)] = None
        elif moved := [x.value.batch_axis for x in traced_in([result]) if x.value and x.value.batch_axis]:
            self.faults[f"a result whose axis {moved[0]} is the batch"] = None
        return result

    def unique(self, base: str, is_module: bool = False) -> str:
        """Return a layer name that no other layer has: ``base`` for a module's first layer."""
        if is_module and base not in self.taken:
            self.taken.add(base)
            return base
        names = [base, *(f"{base}_{number}" for number in range(1, len(self._names) + 1))]
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        return name

    def param(self, name: str, param: Any) -> Tensor:
        """Return a param of the module as a tensor; its layer is made at its first use."""
        make = functools.cache(functools.partial(self.learnt, name, param))
        self.sources[make] = name, param
        return Tensor(ModulePlace(self, name), make, tuple(param.shape), None)

    def learnt(self, name: str, param: Any, is_constant: bool = False) -> Symbol:
        """Make a layer that returns a param or a constant used by the forward itself; return its feature.

        A constant is a fixed param of the model; its name ends with ``CONSTANT``.
        """
        rows = tuple(param.shape) or (1,)
        own = {"name": self.unique(f"{name}{CONSTANT}")} if is_constant else self.shared(name, param)
        fields = {"num_output": rows[-1], "leading": list(rows[:-1])}
        is_fixed = is_constant or not param.requires_grad
        if is_constant:
            self.constants[own["name"]] = param
        conf = [{**own, "static": True}] if is_fixed else [own] if own else None
        vector = nn.Layer("kLearnedVector", name=self.unique(name), param=conf, **fields)
        self.with_params.add(id(vector))
        self._learning |= set() if is_fixed else {id(vector)}
        symbol: Symbol = vector(self.source)
        return symbol

    def constant(self, place: ModulePlace, name: str, value: torch.Tensor) -> Tensor:
        """Turn numbers made in the forward into a fixed param; raise NoLayer for traced numbers."""
        start = value.untyped_storage().data_ptr()
        if any(changed.untyped_storage().data_ptr() == start for changed in self._changed):
            raise NoLayer("of numbers that the forward changes in place by those of a batch")
        return Tensor(place, self.learnt(name, value.float(), is_constant=True), tuple(value.shape), None)

    def shared(self, name: str, param: Any, gate: str = "") -> dict[str, str]:
        """Return the configuration fields that share a param with its first layer; {} for the first."""
        owner = self.owners.setdefault((id(param), gate), name)
        return {} if owner == name else {"share_from": owner}

    def layer(self, module: Any, role: str, make: Callable[[], Any]) -> Any:
        """Return a module's layer, made once so that its calls share params."""
        key = id(module), role
        if key not in self._layers:
            self._layers[key] = layer = make()
            self.with_params.add(id(layer))
            self._learning |= {id(layer)} if layer.trainable else set()
        return self._layers[key]

    def learns(self, value: Any) -> bool:
        """Whether tensors depend on trained params."""
        symbols = [x.symbol for x in map(value_of, tensors_in([value])) if isinstance(x, Tensor)]
        return any(id(symbol.builder) in self._learning for symbol in ancestors(symbols))

    def operate(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make the layers of an operation on traced tensors; return its result."""
        if name in NUMBERS:
            self.faults[f"{self._where(name)} (which depends on numbers of a batch)"] = None
            raise UserError(f"{self._where(name)} depends on numbers of a batch, which layers do not")
        is_in_place = name[-1] == "_" != name[-2:-1] or kwargs.get("inplace") is True
        plain = "bool" if name == "to" and any(x is torch.bool for x in (*args, *kwargs.values())) else name.strip("_")
        make, what, scope = self.operations.get(plain), self._where(plain), self._scopes[-1]
        base = self._operation[0] if self._operation else f"{scope}.{plain}" if scope else plain
        place = ModulePlace(self, base, plain, function, is_module=self._operation is not None)
        result = self._convert(make, place, what, function, args, kwargs)
        if is_in_place and not isinstance(args[0], TracedTensor):
            self._changed.append(args[0])
            return result
        if is_in_place:
            change_views(args[0], self._where(name))
        elif plain in VIEWS:
            relate_views(args[0], traced_in([result]))
        if is_in_place and isinstance(result, TracedTensor):
            args[0].value = result.value
            return args[0]
        return result

    def _where(self, name: str) -> str:
        if self._operation:
            return self._operation[1]
        scope = self._scopes[-1]
        return f"{name} in {scope}" if scope else name

    def _call_module(self, module: Any, path: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a module's forward, or make its layer if it is one of PyTorch's; return the result."""
        kind = type(module).__name__
        make = self.modules.get(kind) if is_of_torch(module) else None
        is_leaf = make is not None or (is_of_torch(module) and not any(module.children()))
        if hasattr(module, "_orig_mod"):  # torch.compile has wrapped the module
            forward = module._orig_mod
        on_meta = any(tensor.is_meta for tensor in tensors_in([args, kwargs]))
        what, outer = f"{path} ({kind})", self._operation
        if is_leaf and not on_meta and (make or [*module.parameters()]):
            function = functools.partial(_on_meta, module)
            return self._convert(make, ModulePlace(self, path, kind, function, module), what, function, args, kwargs)
        self._operation = (path, what) if is_leaf else None
        self._scopes.append(path)
        try:
            return forward(*args, **kwargs)
        finally:
            self._scopes.pop()
            self._operation = outer

    def _convert(
        self, make: Any, place: ModulePlace, what: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make layers by ``make``; on failure record a fault, and return tensors of PyTorch's shapes."""
        is_stray = any(tensor.value is None for tensor in traced_in([args, kwargs]))
        if why := fault_of(traced_in([args, kwargs])):
            self.faults[f"{what} {why}"] = None
        if make is None:
            self.faults[what] = None
        elif not is_stray:
            try:
                values, settings = (replaced(given, value_of) for given in (args, kwargs))
                values = values if place.module is None else (place.module, *values)
                result = self.wrapped(place.call(make, values, settings), self._dtype(place.kind, args))
                if not torch.is_grad_enabled() and self.learns(result):
                    raise NoLayer(f"under torch.no_grad() ({FREEZE})")
                return result
            except TypeError as error:
                self.faults[f"{what} ({error})"] = None
            except (NoLayer, UserError) as error:
                self.faults[f"{what} {text}" if (text := str(error)) else what] = None
        return self._shaped(function, args, kwargs)

    def _dtype(self, kind: str, args: Sequence[Any]) -> torch.dtype:
        if kind in VIEWS or kind in ("clone", "contiguous"):
            return next((x.dtype for x in traced_in([args])), torch.float32)
        return torch.bool if kind in BOOLEAN else torch.float32

    def wrapped(self, result: Any, dtype: torch.dtype = torch.float32) -> Any:
        """Turn symbolic tensors into traced ones; return other results unchanged."""
        if isinstance(result, Symbol):
            result = batched(ModulePlace(self, ""), result)
        if isinstance(result, Tensor):
            value = replace(result, dtype=BOOL if dtype == torch.bool else FLOAT)
            return TracedTensor(self, value, result.shape, dtype)
        if isinstance(result, (list, tuple)):
            parts = [self.wrapped(part, dtype) for part in result]
            return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
        return result

    def _shaped(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return tensors of the shapes that PyTorch computes, so that the forward can go on."""
        result = ModulePlace(self, "", "", function).torch_result(*args, **kwargs)

        def stand_in(tensor: Any) -> TracedTensor:
            shape = tuple(tensor.shape)
            has_rows = len(shape) > 1 and shape[0] == self.batch
            symbol = nn.Input(shape[1:], data_format="channels_first") if has_rows else None
            value = None if symbol is None else Tensor(ModulePlace(self, ""), symbol, shape)
            return TracedTensor(self, value, shape, tensor.dtype)

        return replaced(result, stand_in)

    @contextlib.contextmanager
    def _intercepted(self) -> Iterator[None]:
        """Intercept the calls of submodules and trace their params, for the time of a run."""
        modules = dict(self.module.named_modules())
        modes = {module: module.training for module in modules.values()}
        params = {module: [*module.named_parameters(recurse=False)] for module in modules.values()}
        for path, module in modules.items():
            if not is_of_torch(module) or type(module).__name__.startswith("Parameter"):
                for name, param in params[module]:
                    module._parameters[name] = self.wrapped(self.param(f"{path}.{name}" if path else name, param))
            module.__dict__["forward"] = functools.partial(self._call_module, module, path, module.forward)
            if getattr(module, "use_nested_tensor", False):  # a TransformerEncoder has it for speed in evaluation only
                module.use_nested_tensor = False
        self.module.train(self.training)
        try:
            yield
        finally:
            for module in modules.values():
                del module.__dict__["forward"]
                module._parameters.update(params[module])
                module.training = modes[module]


class ModulePlace:
    """The submodule or operation that layers are made for; its path begins their names.

    Attributes:
        base: the path of the module, or of an operation in it.
        function: PyTorch's function of the operation or module.
        is_module: whether the first layer has a module's name, also for an operation.
    """

    def __init__(
        self, trace: Trace, base: str, kind: str = "", function: Any = None, module: Any = None, is_module: bool = False
    ):
        self.trace, self.base, self.kind, self.function, self.module = trace, base, kind, function, module
        self.is_module = is_module or module is not None

    def name(self, suffix: str = "") -> str:
        """Return a unique name for a further layer."""
        return self.trace.unique(self.base + suffix, self.is_module and not suffix)

    @property
    def batch(self) -> int:
        """The number of records that the traced shapes assume."""
        return self.trace.batch

    def call(self, make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Convert an operation on symbolic tensors; its layers are named after this place."""
        args, kwargs = (replaced(each, lambda x: x.at(self) if isinstance(x, Tensor) else x) for each in (args, kwargs))
        return make(*([self] if "place" in inspect.signature(make).parameters else []), *args, **kwargs)

    def operand(self, x: Any, others: Sequence[Any]) -> Tensor | float:
        """Return an operand as a number or a tensor; a constant tensor becomes a fixed param."""
        if isinstance(x, Tensor):
            return x
        if not isinstance(x, (torch.Tensor, np.ndarray)) or x.ndim == 0:
            if float(x) in (self.batch, 1 / self.batch):
                raise NoLayer("by the number of records of a batch")
            return float(x)
        if isinstance(x, np.ndarray):
            return self.constant(x, ".values")
        if x.requires_grad or isinstance(x, torch.nn.Parameter):
            raise NoLayer("of a param that belongs to another layer")
        moved = max((getattr(other, "batch_axis", None) or 0 for other in others), default=0)
        if moved and x.dim() > 1:
            raise NoLayer(f"on a tensor whose axis {moved} is the batch")
        if len(x) == self.batch:  # made for the batch, as by torch.zeros(len(x), 3)
            if not bool((x == x[:1]).all()):
                raise NoLayer("of constants that differ among the records of a batch")
            x = x[:1]
        return self.trace.constant(self, self.name(".values"), x)

    def array(self, x: Any) -> np.ndarray | None:
        """Return a constant operand's numbers, None for a param or a tensor computed by layers."""
        if isinstance(x, (bool, int, float, np.ndarray)):
            return np.asarray(x)
        is_constant = isinstance(x, torch.Tensor) and not x.requires_grad and not isinstance(x, torch.nn.Parameter)
        return x.cpu().numpy() if is_constant else None

    def constant(self, array: np.ndarray, suffix: str = "") -> Tensor:
        """Turn numbers, equal for all records, into a fixed param."""
        return self.trace.constant(self, self.name(suffix), torch.tensor(array))

    def torch_result(self, *args: Any, **kwargs: Any) -> Any:
        """Call PyTorch's function on tensors without numbers, for the result's shape and strides."""
        args, kwargs = (replaced(value, without_numbers) for value in (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return self.function(*args, **kwargs)


def value_of(x: Any) -> Any:
    """Return the symbolic tensor of a traced one; other values unchanged."""
    return x.value if isinstance(x, TracedTensor) else x


def is_of_torch(module: Any) -> bool:
    """Whether a module's class is PyTorch's own (or drops branches), not a user's subclass."""
    return type(module).__module__.startswith(("torch.nn", "timm.layers.drop", "torchvision.ops.stochastic_depth"))


def _on_meta(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module on tensors without numbers, for its result's shapes."""
    arrays = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: without_numbers(array) for name, array in arrays.items()}
    return torch.func.functional_call(module, shapes, args, kwargs)
