"""Writes dsinga/nn/__init__.pyi, what type checkers and editors see of ``dsinga.nn``: real signatures and docs.

``python -m tests.support.nn_stub`` writes it anew; a test compares it with the package.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsinga import nn
from dsinga.base.registry import is_user_code
from dsinga.nn.words.function_specs import named
from dsinga.nn.words.optimizers import updater_conf
from dsinga.nn.writing import symbol

STUB = Path(nn.__file__).with_suffix(".pyi")
HEAD = '"""Nets in a few lines of Python. Written by ``python -m tests.support.nn_stub``: do not edit."""\n\n'
STANDARD = {"Any": "typing", **dict.fromkeys(("Callable", "Mapping", "Sequence", "Iterable"), "collections.abc")}
BUILT_IN = {"int", "float", "str", "bool", "None", "tuple", "list", "dict", "object", "type"}


def stub() -> str:
    """Return the text of the stub."""
    names = {name for name in {*nn.__all__, *nn._names()} if name[0] != "_"}
    functions = {name: value for name in names if is_function(value := getattr(nn, name))}
    functions |= {name: value for name, value in nn.derived_functions.items() if not is_user_code(value.cls)}  # type: ignore[attr-defined]
    functions = {name: getattr(nn, name) for name in sorted(functions)}
    others = sorted(set(nn.__all__) - functions.keys())
    imports = {f"from {getattr(nn, name).__module__} import {name} as {name}" for name in others}
    imports.add("from dsinga.nn.words import augment as augment")
    texts = []
    for name, function in functions.items():
        signature = inspect.signature(function)
        imports |= set(imports_for(function, signature))
        texts.append(function_text(name, function, signature))
    imports = {line for line in imports if f"{line} as {line.split()[-1]}" not in imports}
    return HEAD + "\n".join(sorted(imports)) + "\n\n" + "\n".join(texts)


def is_function(value: Any) -> bool:
    """Whether a value is a function, whose decorator hides its signature from type checkers."""
    return callable(value) and inspect.isfunction(inspect.unwrap(value))


def imports_for(function: Callable[..., Any], signature: inspect.Signature) -> list[str]:
    """Return the imports that the annotations of a function need."""
    annotations = [p.annotation for p in signature.parameters.values()] + [signature.return_annotation]
    words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", " ".join(map(text_of, annotations)))))
    found = []
    for word in sorted(words - BUILT_IN - {"inspect", "_empty", "PathLike"}):
        scopes = [f.__globals__ for f in (inspect.unwrap(function), updater_conf, symbol.layer, named)]
        scope = next((scope for scope in scopes if word in scope), scopes[0])
        home = STANDARD.get(word) or getattr(scope.get(word), "__module__", None) or scope["__name__"]
        home = scope["__name__"] if home in ("typing", "types") and word != "Any" else home
        found.append("import os" if word == "os" else f"from {home} import {word}")
    return found


def text_of(annotation: Any) -> str:
    """Return an annotation as source."""
    return annotation.__name__ if type(annotation) is type else str(annotation)


def function_text(name: str, function: Callable[..., Any], signature: inspect.Signature) -> str:
    """Return a function with its signature and docstring."""
    parameters, is_keyword_only = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            parameters.append("*")
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {text_of(parameter.annotation)}"
        elif parameter.kind is parameter.KEYWORD_ONLY:
            text += ": Any"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parameters.append(text)
    doc = textwrap.indent(f'"""{inspect.getdoc(function)}"""', "    ", lambda line: bool(line.strip()))
    head, tail = f"def {name}(", f") -> {text_of(signature.return_annotation)}:"
    unbroken = [parameter.replace(" ", "\0") for parameter in parameters]  # lines end after a whole parameter
    text = f"{head}{', '.join(unbroken)}{tail.replace(' ', chr(0))}"
    lines = textwrap.wrap(text, 120, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)
    lines = [line.replace("\0", " ") for line in lines]
    return "\n".join([*lines, doc, ""])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
    sys.stdout.write(f"{STUB}\n")
