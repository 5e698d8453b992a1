"""Random changes of training records, for ``nn.Input(augment=[...])``: ``nn.augment.RandomCrop(pad=4)``."""

from __future__ import annotations

from typing import Any

from dsinga.job import AugmentationType, AugmentConf
from dsinga.nn.words.derived import Derived, called_by_name, derived_function, settings_field, type_fields
from dsinga.nn.words.keras_arguments import missing_names


def augmentation_function(name: str, type: str, cls: Any) -> Any:
    """Make the function of ``nn.augment`` called ``name``, which configures augmentations of class ``cls``."""

    def function(**arguments: Any) -> AugmentConf:
        given: dict[str, Any] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()
        }
        settings_field(name, cls.Conf, given)  # checks the settings
        return AugmentConf(**type_fields(AugmentationType, type), **given)

    return called_by_name(derived_function(name, cls, function))


augmentation_functions = Derived("augmentation", augmentation_function, lambda _, cls: hasattr(cls, "mixes_records"))

__getattr__ = missing_names(__name__, public="dsinga.nn.augment", derived=lambda: augmentation_functions)
