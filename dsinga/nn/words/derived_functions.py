"""The functions of ``nn`` that follow from registered components, and the words that add-ons bring, by name."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

from dsinga.base.registry import find, registered
from dsinga.layers.connect.bridge import Bridge
from dsinga.layers.interface.layer import Layer
from dsinga.nn.words.derived import Derived, derived_function
from dsinga.nn.words.inputs import source_functions
from dsinga.nn.words.loss_sources import write_derived_loss
from dsinga.nn.words.optimizers import optimizer_functions
from dsinga.nn.words.schedules import schedule_functions
from dsinga.nn.writing.symbol import layer
from dsinga.nn.writing.writer import Write, simple

# Layers whose names mean something else in Keras, or nothing: nn has Conv1D, ConvLSTM2D, RepeatVector, SimpleRNN, Dice,
# Lambda and the indexing of features.
OTHERWISE = ("kConvolution1D", "kConvLSTM", "kRepeat", "kRNN", "kDiceLoss", "kFunction", "kIndex")


def layer_function(name: str, type: str, cls: Any) -> Any:
    """Return the function called ``name`` that makes layers of a class without a written one: nn.PReLU, or a user's."""

    def function(**settings: Any) -> Write:
        return write_derived_loss(name, type, cls, settings) or simple(name, type, **settings)

    return layer(derived_function(name, cls, function))


def has_function(type: str, cls: Any) -> bool:
    """Whether a layer computes a feature from those of others; nn.Input and partitioning make the other layers."""
    of_nets = issubclass(cls, Layer) and not issubclass(cls, Bridge) and not (cls.is_input or cls.is_output)
    return of_nets and type not in OTHERWISE


layer_functions = Derived("layer", layer_function, has_function)


class Words(Mapping[str, Any]):
    """Words of add-ons by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        word = find("word", name)
        if word is None:
            raise KeyError(name)
        return word

    def __iter__(self) -> Iterator[str]:
        return iter(registered("word"))

    def __len__(self) -> int:
        return len(registered("word"))


_FUNCTIONS: list[Any] = [layer_functions, optimizer_functions, schedule_functions, source_functions]
derived_functions = ChainMap[str, Any](*_FUNCTIONS)
all_functions = ChainMap[str, Any](*_FUNCTIONS, Words())  # type: ignore[arg-type]
