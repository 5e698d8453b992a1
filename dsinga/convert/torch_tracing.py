"""Traces a PyTorch module: runs its forward on tensors that have only shapes; each operation becomes a layer."""

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

# What depends on numbers, which a traced tensor does not have.
NUMBERS = {"__bool__", "__contains__", "__float__", "__index__", "__int__", "item", "numpy", "tolist"}
BOOLEAN = {"eq", "ne", "gt", "ge", "lt", "le", "and", "or", "invert", "bool"}  # operations with truth values
BOOLEAN |= {"logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "isnan"}


class Trace:
    """One run of a module's forward.

    Attributes:
        module: the module.
        training: whether it is the forward of training, else that of evaluation.
        batch: the number of records of a batch.
        fused: whether attention is one layer where it can be.
        faults: what is unsupported, in the order of the forward; each once.
        source: the feature of the first input.
        constants: the values of params that are none of the module's, by name.
        param_names: the names of the module's params by their ids.
        stand_ins: what stands for modules of functions that take params, by these and the settings.
        taken: the names of modules that layers have.
        with_params: the ids of layers with params.
        owners: the names of the params of layers, by the id of the module's and the gate of a GRU, "" for all of it.
        sources: what tensors are whose layers are made later, by their sources: the name and the value of a param, or
            what makes the last states of a layer, and "h" or "c".
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
        """Return what the forward returns for these features. Raises UserError for a forward that fails."""
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
        """Return a name that no other layer has, ``base`` for the first layer of a module."""
        if is_module and base not in self.taken:
            self.taken.add(base)
            return base
        names = [base, *(f"{base}_{number}" for number in range(1, len(self._names) + 1))]
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        return name

    def param(self, name: str, param: Any) -> Tensor:
        """Return a param of the module, whose layer is made where it is first used."""
        make = functools.cache(functools.partial(self.learnt, name, param))
        self.sources[make] = name, param
        return Tensor(ModulePlace(self, name), make, tuple(param.shape), None)

    def learnt(self, name: str, param: Any, is_constant: bool = False) -> Symbol:
        """Return the feature of a param of the module that its forward uses itself, or of a constant, for all records.

        A constant is a param of the model that does not move; names of such end with ``CONSTANT``.
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
        """Return numbers that the forward makes, as the same for all records. Raises NoLayer for traced ones."""
        start = value.untyped_storage().data_ptr()
        if any(changed.untyped_storage().data_ptr() == start for changed in self._changed):
            raise NoLayer("of numbers that the forward changes in place by those of a batch")
        return Tensor(place, self.learnt(name, value.float(), is_constant=True), tuple(value.shape), None)

    def shared(self, name: str, param: Any, gate: str = "") -> dict[str, str]:
        """Return what a layer says of a param that another layer has, too; {} for its first layer."""
        owner = self.owners.setdefault((id(param), gate), name)
        return {} if owner == name else {"share_from": owner}

    def layer(self, module: Any, role: str, make: Callable[[], Any]) -> Any:
        """Return the layer of a module, which is made once, so that its calls share params."""
        key = id(module), role
        if key not in self._layers:
            self._layers[key] = layer = make()
            self.with_params.add(id(layer))
            self._learning |= {id(layer)} if layer.trainable else set()
        return self._layers[key]

    def learns(self, value: Any) -> bool:
        """Whether tensors depend on params that are trained."""
        symbols = [x.symbol for x in map(value_of, tensors_in([value])) if isinstance(x, Tensor)]
        return any(id(symbol.builder) in self._learning for symbol in ancestors(symbols))

    def operate(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operation on traced tensors, after its layers are made."""
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
        """Return an operation with the module that calls it, or that is such an operation, for messages."""
        if self._operation:
            return self._operation[1]
        scope = self._scopes[-1]
        return f"{name} in {scope}" if scope else name

    def _call_module(self, module: Any, path: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of the forward of a module: of one of PyTorch's layers after its layer is made."""
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
        """Return what ``make`` makes; record a fault where it cannot, and return tensors of the shapes of torch's."""
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
        """Return the dtype of the result of an operation: truth values, or numbers."""
        if kind in VIEWS or kind in ("clone", "contiguous"):
            return next((x.dtype for x in traced_in([args])), torch.float32)
        return torch.bool if kind in BOOLEAN else torch.float32

    def wrapped(self, result: Any, dtype: torch.dtype = torch.float32) -> Any:
        """Return symbolic tensors as traced ones; other results as they are."""
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
        """Return tensors of the shapes that PyTorch's own function gives, so that the forward goes on."""
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
        """Let calls of the submodules come here, and their params be traced, in the mode of the phase."""
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
    """The submodule or operation for which layers are made; its path begins their names.

    Attributes:
        trace: the run of the forward.
        base: the path of the module, or of an operation in it.
        kind: the name of the class of the module, or of the operation.
        function: PyTorch's function of the operation or the module.
        module: the module, None for an operation.
        is_module: whether the first layer has the name of a module, which may be that of an operation.
    """

    def __init__(
        self, trace: Trace, base: str, kind: str = "", function: Any = None, module: Any = None, is_module: bool = False
    ):
        self.trace, self.base, self.kind, self.function, self.module = trace, base, kind, function, module
        self.is_module = is_module or module is not None

    def name(self, suffix: str = "") -> str:
        """Return the name of a further layer."""
        return self.trace.unique(self.base + suffix, self.is_module and not suffix)

    @property
    def batch(self) -> int:
        """The number of records that shapes count with."""
        return self.trace.batch

    def call(self, make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the function of an operation makes of symbolic tensors, which name layers by this place."""
        args, kwargs = (replaced(each, lambda x: x.at(self) if isinstance(x, Tensor) else x) for each in (args, kwargs))
        return make(*([self] if "place" in inspect.signature(make).parameters else []), *args, **kwargs)

    def operand(self, x: Any, others: Sequence[Any]) -> Tensor | float:
        """Return an operand as a number or a tensor; a constant tensor becomes a param that keeps its value."""
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
        """Return the numbers of an operand that is no param, None for a tensor that layers compute."""
        if isinstance(x, (bool, int, float, np.ndarray)):
            return np.asarray(x)
        is_constant = isinstance(x, torch.Tensor) and not x.requires_grad and not isinstance(x, torch.nn.Parameter)
        return x.cpu().numpy() if is_constant else None

    def constant(self, array: np.ndarray, suffix: str = "") -> Tensor:
        """Return numbers that are the same for all records, as a param that keeps its values."""
        return self.trace.constant(self, self.name(suffix), torch.tensor(array))

    def torch_result(self, *args: Any, **kwargs: Any) -> Any:
        """Return what PyTorch's function gives for these tensors, without numbers, for its shape and strides."""
        args, kwargs = (replaced(value, without_numbers) for value in (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return self.function(*args, **kwargs)


def value_of(x: Any) -> Any:
    """Return the symbolic tensor of a traced one; other values as they are."""
    return x.value if isinstance(x, TracedTensor) else x


def is_of_torch(module: Any) -> bool:
    """Whether the class of a module is PyTorch's own, or one that drops branches, not a subclass of the user's."""
    return type(module).__module__.startswith(("torch.nn", "timm.layers.drop", "torchvision.ops.stochastic_depth"))


def _on_meta(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a module for tensors without numbers, of the shapes that it gives."""
    arrays = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: without_numbers(array) for name, array in arrays.items()}
    return torch.func.functional_call(module, shapes, args, kwargs)
