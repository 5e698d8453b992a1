"""Augmentations of training records, for ``nn.Input(augment=[...])``: ``nn.augment.RandomCrop(pad=4)``.

Each function is that of a class of :mod:`dsinga.addons.augmentation`, or of a user's own, and takes its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsinga.job import AugmentationType, AugmentConf
from dsinga.nn.words.function_specs import Derived, FunctionSpec, called_by_name, named, type_fields
from dsinga.nn.words.keras_arguments import missing_names


def augmentation_function(name: str, form: FunctionSpec, cls: Any) -> Callable[..., AugmentConf]:
    """Return the function called ``name`` that makes augmentations of a class."""

    def function(**arguments: Any) -> AugmentConf:
        given: dict[str, Any] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()
        }
        form.fields(name, cls.Conf, given)  # which checks them
        return AugmentConf(**type_fields(AugmentationType, form.type), **given)

    return called_by_name(named(function, name, form, cls))


augmentation_functions = Derived("augmentation", augmentation_function, takes=lambda cls: hasattr(cls, "mixes_records"))

__getattr__ = missing_names(__name__, public="dsinga.nn.augment", derived=lambda: augmentation_functions)


def __dir__() -> list[str]:
    return sorted({*globals(), *augmentation_functions})
