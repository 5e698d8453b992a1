"""Runs the forward of a PyTorch module on tensors without numbers, of which each operation makes a layer."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.convert import torch_views as views
from dsinga.convert.torch_names import CONSTANT
from dsinga.nn.writing.symbol import Symbol

# The records of a batch of traced tensors: a number that no axis of features is likely to have.
BATCH = 1009
# What tensors tell without their numbers: properties, and methods.
KNOWN = {
    "__len__", "device", "dim", "dtype", "get_device", "is_complex", "is_contiguous", "is_cpu", "is_cuda", "is_meta",
    "is_floating_point", "is_mps", "is_nested", "is_sparse", "layout", "ndim", "numel", "requires_grad", "shape",
    "size",
}  # fmt: skip
# What depends on numbers, which a traced tensor does not have.
NUMBERS = {"__bool__", "__contains__", "__float__", "__index__", "__int__", "item", "numpy", "tolist"}
# Operations and modules that take the batch as any axis,
ANY_BATCH_AXIS = {
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "swapaxes"),
    *("movedim", "mT", "t", "T", "getitem", "contiguous", "to", "float", "type_as"),
    *("LSTM", "GRU", "RNN", "MultiheadAttention"),
}
# and those, in small letters, that compute the same whichever of the axes before the last one it is.
ALONG_LAST = {
    *("add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "neg", "square", "sqrt", "clamp", "clone"),
    *("relu", "relu6", "leaky_relu", "leakyrelu", "gelu", "sigmoid", "tanh", "silu", "dropout", "identity"),
    *("linear", "layernorm", "rmsnorm", "embedding"),
}


_Tensor: Any = torch.Tensor  # its methods have types only where PyTorch is installed


class NotConvertible(Exception):
    """A module or an operation that has no counterpart; the text says which setting of it, "" for all of it."""


class TracedTensor(_Tensor):  # type: ignore[misc]
    """A tensor without numbers that stands for the feature of a layer.

    Attributes:
        tracer: the run of the forward that it belongs to.
        symbol: the feature of a layer, None where the first axis is no batch, after an operation that is unsupported.
        unbatched: whether it is the same for all records, as a param is: the tensor then has no axis of the batch, and
            the rows of the symbol have its shape.
        batch_axis: the axis of the batch, 1 of sequences (T, B, n), whose symbol has it first, as any.
    """

    tracer: Trace
    symbol: Symbol | None
    unbatched: bool
    batch_axis: int

    @staticmethod
    def __new__(
        cls, trace: Trace, symbol: Symbol | None, shape: Sequence[int], unbatched: bool = False, batch_axis: int = 0
    ) -> TracedTensor:
        """Return a tensor of this shape."""
        tensor: TracedTensor = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=torch.float32)
        tensor.tracer, tensor.symbol, tensor.unbatched, tensor.batch_axis = trace, symbol, unbatched, batch_axis
        return tensor

    def with_batch_axis(self, axis: int) -> TracedTensor:
        """Return the tensor of the same feature that has the batch as this axis."""
        assert self.symbol is not None
        rows = rows_of(self.symbol)
        return TracedTensor(self.tracer, self.symbol, (*rows[:axis], BATCH, *rows[axis:]), batch_axis=axis)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Let an operation make a layer."""
        kwargs = kwargs or {}
        name = func.__name__ if func.__name__ != "__get__" else func.__self__.__name__
        if name in KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        traced = traced_in([args, kwargs])
        return traced[0].tracer.operate(name, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Refuse what reaches the numbers of a tensor."""
        raise UserError(f"{func} needs numbers, which a traced tensor does not have")

    def __repr__(self, **arguments: Any) -> str:
        return f"TracedTensor({tuple(self.shape)})"


class Trace:
    """One run of a module's forward.

    Attributes:
        module: the module.
        faults: what is unsupported, in the order of the forward; each once.
        source: the feature of the first input.
        constants: the values of params that are none of the module's, by name.
        owners: the names of the params of layers, by the id of the module's and the gate of a GRU, "" for all of it.
    """

    def __init__(self, module: torch.nn.Module, operations: Mapping[str, Any], modules: Mapping[str, Any]):
        self.module = module
        self.operations, self.modules = operations, modules
        self.faults: dict[str, None] = {}
        self.source: Symbol | None = None
        self.constants: dict[str, Any] = {}
        self.owners: dict[tuple[int, str], str] = {}
        self._scopes = [""]
        self._names = {path for path, _ in module.named_modules()}  # for their layers
        self._taken: set[str] = set()
        self._layers: dict[tuple[int, str], Any] = {}

    def run(self, inputs: Mapping[str, Symbol]) -> Any:
        """Return what the forward returns for these features. Raises UserError for a forward that fails."""
        self.source = next(iter(inputs.values()))
        tensors = {name: TracedTensor(self, symbol, (BATCH, *rows_of(symbol))) for name, symbol in inputs.items()}
        with self._intercepted():
            try:
                result = self.module(**tensors)
            except Exception as error:
                if self.faults:
                    return None
                raise UserError(
                    f"the forward of {type(self.module).__name__} fails for tensors without numbers, as from_torch "
                    f"calls it: {type(error).__name__}: {error}"
                ) from error
        if why := views.fault(traced_in([result])):
            self.faults[f"a result {why}".replace(" on ", " of ", 1)] = None
        elif moved := [tensor for tensor in traced_in([result]) if tensor.batch_axis]:
            self.faults[f"a result whose axis {moved[0].batch_axis} is the batch"] = None
        return result

    def unique(self, base: str, is_module: bool = False) -> str:
        """Return a name that no other layer has, ``base`` for the first layer of a module."""
        if is_module and base not in self._taken:
            self._taken.add(base)
            return base
        names = [base, *(f"{base}_{number}" for number in range(1, len(self._names) + 1))]
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        return name

    def learnt(self, name: str, param: Any, is_constant: bool = False) -> TracedTensor:
        """Return a param of the module that its forward uses itself, or a constant, as the same array for all records.

        A constant is a param of the model that does not move; names of such end with ``CONSTANT``.
        """
        rows = tuple(param.shape) or (1,)
        own = {"name": self.unique(f"{name}{CONSTANT}")} if is_constant else self.shared(name, param)
        fields = {"num_output": rows[-1], "leading": list(rows[:-1])}
        if is_constant:
            self.constants[own["name"]] = param
        conf = [{**own, "static": True}] if is_constant or not param.requires_grad else [own] if own else None
        vector = nn.Layer("kLearnedVector", name=self.unique(name), param=conf, **fields)
        return TracedTensor(self, vector(self.source), tuple(param.shape), unbatched=True)

    def shared(self, name: str, param: Any, gate: str = "") -> dict[str, str]:
        """Return what a layer says of a param that another layer has, too; {} for its first layer."""
        owner = self.owners.setdefault((id(param), gate), name)
        return {} if owner == name else {"share_from": owner}

    def layer(self, module: Any, role: str, make: Callable[[], Any]) -> Any:
        """Return the layer of a module, which is made once, so that its calls share params."""
        key = id(module), role
        if key not in self._layers:
            self._layers[key] = make()
        return self._layers[key]

    def operate(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operation on traced tensors, after its layers are made."""
        if name in NUMBERS:
            raise UserError(f"{self._where(name)} depends on numbers of a batch, which layers do not")
        is_in_place = name[-1] == "_" != name[-2:-1] or kwargs.get("inplace") is True
        plain = name.strip("_")
        make = self.operations.get(plain)
        scope = self._scopes[-1]
        place = ModulePlace(self, f"{scope}.{plain}" if scope else plain, function=function)
        result = self._convert(make, place, self._where(plain), function, args, kwargs)
        if is_in_place:
            views.change(args[0], self._where(name))
        elif plain in views.VIEWS:
            views.relate(args[0], traced_in([result]))
        if is_in_place and isinstance(result, TracedTensor):
            args[0].symbol, args[0].unbatched = result.symbol, result.unbatched
            return args[0]
        return result

    def _where(self, name: str) -> str:
        """Return an operation with the module that calls it, for messages."""
        scope = self._scopes[-1]
        return f"{name} in {scope}" if scope else name

    def _call_module(self, module: Any, path: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of the forward of a module: of one of PyTorch's layers after its layer is made."""
        kind = type(module)
        make = self.modules.get(kind.__name__) if is_of_torch(module) else None
        is_leaf = make is not None or (is_of_torch(module) and not any(module.children()))
        on_meta = any(tensor.is_meta for tensor in tensors_in([args, kwargs]))
        if not is_leaf or on_meta:
            self._scopes.append(path)
            try:
                return forward(*args, **kwargs)
            finally:
                self._scopes.pop()
        what = f"{path} ({kind.__name__})"
        function = functools.partial(_on_meta, module)
        result = self._convert(make, ModulePlace(self, path, module, function), what, function, args, kwargs)
        if getattr(module, "inplace", False) and isinstance(result, TracedTensor):
            args[0].symbol = result.symbol
            views.change(args[0], what)
            views.relate(args[0], [result])
        elif kind.__name__ in views.VIEWS:
            views.relate(args[0], traced_in([result]))
        return result

    def _convert(
        self, make: Any, place: ModulePlace, what: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return what ``make`` makes; record a fault where it cannot, and return tensors of the shapes of torch's."""
        is_stray = any(tensor.symbol is None for tensor in traced_in([args, kwargs]))
        if why := views.fault(traced_in([args, kwargs])):
            self.faults[f"{what} {why}"] = None
        if make is None:
            self.faults[what] = None
        elif not is_stray:
            try:
                positional = (place,) if place.module is None else (place, place.module)
                inspect.signature(make).bind(*positional, *args, **kwargs)
                axis = place.moved_axis(tensors_in([args, kwargs]))
                if axis:
                    args, kwargs = (replaced(value, _batch_first) for value in (args, kwargs))
                result = self.wrapped(make(*positional, *args, **kwargs))
                return result.with_batch_axis(axis) if axis else result
            except TypeError as error:
                self.faults[f"{what} ({error})"] = None
            except (NotConvertible, UserError) as error:
                self.faults[f"{what} {text}" if (text := str(error)) else what] = None
        return self._shaped(function, args, kwargs)

    def wrapped(self, result: Any) -> Any:
        """Return features as traced tensors; other results as they are."""
        if isinstance(result, Symbol):
            return TracedTensor(self, result, (BATCH, *rows_of(result)))
        if isinstance(result, (list, tuple)):
            return tuple(map(self.wrapped, result))
        return result

    def _shaped(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return tensors of the shapes that PyTorch's own function gives, so that the forward goes on."""
        result = ModulePlace(self, "", function=function).torch_result(*args, **kwargs)

        def stand_in(tensor: Any) -> TracedTensor:
            shape = tuple(tensor.shape)
            has_rows = len(shape) > 1 and shape[0] == BATCH
            return TracedTensor(self, nn.Input(shape[1:], data_format="channels_first") if has_rows else None, shape)

        return replaced(result, stand_in)

    @contextlib.contextmanager
    def _intercepted(self) -> Iterator[None]:
        """Let calls of the submodules come here, and their params be traced, in the mode of training."""
        modules = dict(self.module.named_modules())
        modes = {module: module.training for module in modules.values()}
        params = {module: [*module.named_parameters(recurse=False)] for module in modules.values()}
        for path, module in modules.items():
            if not is_of_torch(module) or type(module).__name__.startswith("Parameter"):
                traced = {
                    name: self.learnt(f"{path}.{name}" if path else name, param) for name, param in params[module]
                }
                module._parameters.update(traced)
            module.__dict__["forward"] = functools.partial(self._call_module, module, path, module.forward)
        self.module.train()
        try:
            yield
        finally:
            for module in modules.values():
                del module.__dict__["forward"]
                module._parameters.update(params[module])
                module.training = modes[module]


class ModulePlace:
    """Where in the module layers are made: their names begin with it.

    Attributes:
        trace: the run of the forward.
        base: the path of the module, or of an operation in it.
        module: the module, None for an operation.
        function: PyTorch's function of the operation or the module.
    """

    def __init__(self, trace: Trace, base: str, module: Any = None, function: Any = None):
        self.trace, self.base, self.module, self.function = trace, base, module, function

    def name(self, suffix: str = "") -> str:
        """Return the name of a further layer."""
        return self.trace.unique(self.base + suffix, self.module is not None and not suffix)

    def moved_axis(self, tensors: Sequence[torch.Tensor]) -> int:
        """Return the axis of the batch, 0 for what knows where it is itself. Raises NotConvertible where it must be 0.

        That of an operation is moved to the front and back again, if this changes nothing else.
        """
        kind = self.base.rpartition(".")[2] if self.module is None else type(self.module).__name__
        traced = [x for x in tensors if isinstance(x, TracedTensor)]
        forms = {(x.batch_axis, x.dim(), x.unbatched) for x in traced}
        has_arrays = any(x.dim() > 1 for x in tensors if not isinstance(x, TracedTensor))
        moved = max((axis for axis, *_ in forms), default=0)
        if moved and kind not in ANY_BATCH_AXIS and (kind.lower() not in ALONG_LAST or len(forms) > 1 or has_arrays):
            raise NotConvertible(f"on a tensor whose axis {moved} is the batch")
        return 0 if kind in ANY_BATCH_AXIS else moved

    def torch_result(self, *args: Any, **kwargs: Any) -> Any:
        """Return what PyTorch's function gives for these tensors, without numbers, for its shape and strides."""
        args, kwargs = (replaced(value, _without_numbers) for value in (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return self.function(*args, **kwargs)


def is_of_torch(module: Any) -> bool:
    """Whether the class of a module is PyTorch's own, not a subclass of the user's."""
    return type(module).__module__.startswith("torch.nn")


def rows_of(symbol: Symbol) -> tuple[int, ...]:
    """Return the shape of a row of a feature."""
    rows = symbol.rows
    assert rows is not None, symbol
    return tuple(rows)


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with each tensor in its tuples, lists and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(replaced(item, change) for item in value)
    return {key: replaced(item, change) for key, item in value.items()} if isinstance(value, dict) else value


def _without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _batch_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.with_batch_axis(0) if isinstance(tensor, TracedTensor) else tensor


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value."""
    found: list[torch.Tensor] = []
    replaced(value, found.append)
    return found


def traced_in(value: Any) -> list[TracedTensor]:
    """Return the traced tensors in a value."""
    return [tensor for tensor in tensors_in(value) if isinstance(tensor, TracedTensor)]


def _on_meta(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a module for tensors without numbers, of the shapes that it gives."""
    arrays = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: _without_numbers(array) for name, array in arrays.items()}
    return torch.func.functional_call(module, shapes, args, kwargs)
