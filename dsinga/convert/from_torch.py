"""Converts a PyTorch module to a model of ``dsinga.nn`` with the module's names and params."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from dsinga import nn
from dsinga.base.arguments import is_whole, value_text
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.convert.weights import names_of, take_arrays
from dsinga.nn.writing.symbol import Symbol

# Wrapper modules with the attribute of the wrapped module; hooks that compute params, with the call that removes them.
WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
COMPUTING = {
    "WeightNorm": "remove_weight_norm({}, {!r})",
    "SpectralNorm": "remove_spectral_norm({}, {!r})",
    "BasePruningMethod": "prune.remove({}, {!r})",
}

COLLECTED_BYTES = 16 << 20  # the garbage collector takes long, so it runs only for as many bytes of params


@public
def from_torch(module: Any, *shapes: Sequence[int], name: str = "") -> nn.Model:
    """Convert a PyTorch module to a model of ``dsinga.nn`` with the module's params; ``module`` does not change.

    Layers have the paths of their submodules, "layer1.0.conv1"; params are named after them, "layer1.0.conv1_weight".
    The forward runs once, on tensors without numbers. Axes keep PyTorch's order, the batch first. Dropout and batch
    normalisation follow dsinga's phases, whatever the module's mode.

    Args:
        module: a ``torch.nn.Module``.
        shapes: a record's shape, without the batch, for each argument of the forward: (3, 224, 224), or (T,) for codes.
            Not needed if the module begins with ``torch.nn.Linear``. Further arguments keep their defaults.
        name: of the model; defaults to the module's class name.

    Raises UserError with the names of all unsupported modules and operations, before anything is made.
    """
    try:
        import torch
    except ImportError:
        raise UserError("from_torch needs PyTorch; install it, as by pip install 'dsinga[torch]'") from None
    from torch.nn.parameter import is_lazy

    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise UserError(f"from_torch takes a torch.nn.Module in Python, not {_described(module)}")
    module = unwrapped(module)
    from dsinga.convert.torch_modules import MODULES
    from dsinga.convert.torch_phases import trace_forward
    from dsinga.convert.torch_tracing import is_of_torch

    if type(module).__name__ in MODULES and is_of_torch(module):
        raise UserError(f"from_torch takes a module of layers, not a single one; give torch.nn.Sequential({module})")
    if any(param.is_meta or is_lazy(param) for param in module.parameters()):
        raise UserError("from_torch takes a module whose params have numbers: call it once on a batch, or load them")
    if computed := computed_params(module):
        raise UserError(f"from_torch takes params as they are, but {'; '.join(computed)}")
    known = [_checked_shape(shape) for shape in shapes] or _first_shape(module)
    inputs = _inputs(module, known)
    trace, outputs = trace_forward(module, inputs)
    model = nn.Model(
        list(inputs.values()), [tensor.value.symbol for tensor in outputs], name=name or type(module).__name__
    )
    arrays = {
        key: array.detach().cpu().float().numpy().copy() for key, array in module.state_dict(keep_vars=True).items()
    }
    constants = {key: array.cpu().numpy() for key, array in trace.constants.items()}
    del trace, outputs
    if sum(array.nbytes for array in arrays.values()) > COLLECTED_BYTES:
        gc.collect()  # traces are circles, which would keep the module's params
    model.params = take_arrays(names_of(model), arrays, type(module).__name__) | constants
    return model


def _described(given: Any) -> str:
    """Name what was given in place of a module, with the remedy."""
    if isinstance(given, type):
        return f"the class {given.__name__}; give an object of it: from_torch({given.__name__}(), ...)"
    if isinstance(given, Mapping):
        return (
            f"{type(given).__name__}; a state_dict has arrays and no net: write module.load_state_dict(...) and give "
            "the module"
        )
    return type(given).__name__


def unwrapped(module: Any) -> Any:
    """Return the original module of one wrapped by torch.compile, DataParallel or DistributedDataParallel."""
    while type(module).__name__ in WRAPPERS and hasattr(module, WRAPPERS[type(module).__name__]):
        module = getattr(module, WRAPPERS[type(module).__name__])
    return module


def computed_params(module: Any) -> list[str]:
    """Return an error for each param that PyTorch computes at each call, with the remedy."""
    from torch.nn.utils import parametrize

    faults = []
    for path, part in module.named_modules():
        target, prefix = (f'module.get_submodule("{path}")', f"{path}.") if path else ("module", "")
        for name in part.parametrizations if parametrize.is_parametrized(part) else ():
            end = f"parametrize.remove_parametrizations({target}, {name!r})"
            faults.append(f"{prefix}{name} is parametrized; write torch.nn.utils.{end} first")
        for hook in part._forward_pre_hooks.values():
            kind = next((cls.__name__ for cls in type(hook).__mro__ if cls.__name__ in COMPUTING), "")
            if kind:
                name = getattr(hook, "name", getattr(hook, "_tensor_name", "weight"))
                end = COMPUTING[kind].format(target, name)
                what = f"{prefix}{name} is computed at each call ({type(hook).__name__})"
                faults.append(f"{what}; write torch.nn.utils.{end} first")
    return faults


def _checked_shape(shape: Any) -> tuple[int, ...]:
    """Return a record's shape; raise UserError if it is no shape, or leaves a size open."""
    sizes = (shape,) if is_whole(shape, 1) else shape
    if not isinstance(sizes, (tuple, list)) or not all(is_whole(size, 1) for size in sizes):
        raise UserError(
            "from_torch takes the shape of a record, without the batch, in whole numbers above 0, such as "
            f"(3, 224, 224), not {value_text(shape)}"
        )
    return tuple(sizes)


def _first_shape(module: Any) -> list[tuple[int, ...]]:
    """Return the shape of a record that the module's first layer requires; raise UserError if it tells none."""
    first = next((child for child in module.modules() if not any(child.children())), None)
    if type(first).__name__ != "Linear":
        raise UserError("from_torch needs the shape of a record here, as in from_torch(module, (3, 224, 224))")
    return [(first.in_features,)]  # type: ignore[union-attr]


def _inputs(module: Any, shapes: Sequence[Sequence[int]]) -> dict[str, Symbol]:
    """Make the input layers for the forward's first arguments. Raises UserError for a wrong number of shapes."""
    arguments = [*inspect.signature(module.forward).parameters.values()]
    taken = [argument for argument in arguments if argument.kind is argument.POSITIONAL_OR_KEYWORD]
    needed = [argument.name for argument in taken if argument.default is argument.empty]
    if not taken:
        raise UserError(f"the forward of {type(module).__name__} names no arguments; give the module that it wraps")
    if not len(needed) <= len(shapes) <= len(taken):
        raise UserError(
            f"the forward of {type(module).__name__} takes {', '.join(needed)}; give from_torch the shape of a record "
            f"of each, not {len(shapes)} shapes"
        )
    names = {argument.name: argument.name for argument in taken}
    names |= {path: f"{path}_input" for path, _ in module.named_modules() if path in names}
    return {
        argument.name: nn.Input(tuple(shape), names[argument.name], data_format="channels_first")
        for argument, shape in zip(taken, shapes, strict=False)
    }
