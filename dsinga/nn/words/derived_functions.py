"""The functions of ``nn`` that follow from registered components, and the words that add-ons bring, by name."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

from dsinga.base.registry import find, registered
from dsinga.nn.words.basic_layers import layer_functions
from dsinga.nn.words.inputs import source_functions
from dsinga.nn.words.optimizers import optimizer_functions
from dsinga.nn.words.schedules import schedule_functions


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
