"""Checks the arguments of public functions against their annotations."""

from __future__ import annotations

import functools
import inspect
import math
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Integral, Real
from typing import Any, TypeVar, Union, get_args, get_origin

import numpy as np

from dsinga.base.arguments import bind, signature_with_types, value_text
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", os.PathLike: "a path"}

CALLS_OF_MODELS = {"evaluate": "model.evaluate(x, y)", "predict": "model.predict(x)"}


def typed(prefix: str = "") -> Callable[[F], F]:
    """Let public functions raise UserError for arguments of wrong types: return the decorator.

    It checks numbers (not NaN), texts, paths, truth values, and sequences and mappings of these.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.cache
        def hints() -> Mapping[str, Any]:
            """Read the annotations at the first call, because they may name later definitions."""
            parameters = signature.parameters.values()
            named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
            return {each.name: _resolved(each.annotation, function) for each in named}

        @public
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name, value in bind(f"{prefix}{function.__name__}", signature, args, kwargs).items():
                if name == "job" and function.__name__ in CALLS_OF_MODELS and hasattr(value, "fit"):
                    call_of_model = CALLS_OF_MODELS[function.__name__]
                    raise UserError(f"dsinga.{function.__name__} takes a job; for a model write {call_of_model}")
                hint = hints().get(name, Any)
                if not _fits(value, hint):
                    text = f"{prefix}{function.__name__}: {name} is {_text(hint)}, not {value_text(value)}"
                    raise UserError(text)
            return function(*args, **kwargs)

        call.__signature__ = signature_with_types(function)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return the type that an annotation names; ``Any`` for names that only type checkers know."""
    try:
        return eval(annotation, inspect.unwrap(function).__globals__) if isinstance(annotation, str) else annotation
    except NameError:
        return Any


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type ``hint``; true for types that are not checked."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if hint is None or hint is type(None):
        return value is None
    if origin is bool:
        return isinstance(value, (bool, np.bool_))
    if origin is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if origin is float:
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    if origin in (str, os.PathLike):
        return isinstance(value, origin)
    if origin is Mapping or origin is dict:
        return isinstance(value, Mapping)
    if origin in (Sequence, Iterable, list, tuple):
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            return False
        if origin is Iterable or not inner or not isinstance(value, Sized):
            return True
        if origin is tuple and inner[-1] is not Ellipsis:
            return len(value) == len(inner) and all(map(_fits, value, inner))
        return all(_fits(each, inner[0]) for each in value)
    return True


def _text(hint: Any) -> str:
    """Word a type for a message."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_text(each) for each in inner))
    if hint is None or hint is type(None):
        return "None"
    if origin in (Mapping, dict):
        return "a dict"
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return f"({', '.join(_text(each).removeprefix('a ') for each in inner)})"
    if origin in (Sequence, Iterable, list, tuple):
        return f"a list of {_text(inner[0]).removeprefix('a ')}s" if inner and inner[0] in WORDS else "a list"
    return WORDS.get(origin, getattr(origin, "__name__", str(origin)))
