"""Gives models the methods of add-ons, such as ``export`` to ONNX, without importing the add-ons early."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

from dsinga.base.arguments import fail_for_name
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import find, registered
from dsinga.nn.words.keras_arguments import MODEL_ATTRIBUTES

# Attributes that only dsinga uses; dir(model), from which notebooks complete, leaves them out.
FOR_DSINGA = frozenset(
    """
    as_labels default_batch_size default_epochs has_channels_last input_names input_shapes job_changes known_params
    label_examples label_inputs label_shapes make_job objective on_features ordered_params output_layers parts_of_nets
    predicting_net record_shapes refuse_while_training require_loss served set_param shaped_net text_encoders trained
    trained_definitions weights_of
    """.split()
)


class AddedMethods:
    """Base class of models that finds methods of add-ons, and suggests names for misspelt attributes."""

    _attributes: Mapping[str, str] = MODEL_ATTRIBUTES  # replacements for attributes that a model lacks

    if not TYPE_CHECKING:  # type checkers would infer Never for all other names

        @public
        def __getattr__(self, name: str) -> Any:
            if "record_shapes" not in vars(self) and not name.startswith("__"):
                raise UserError(f"{type(self).__name__}.__init__ must begin with super().__init__()")
            if (method := find("method", name)) is not None:
                return MethodType(method, self)
            fail_for_name("a model", name, [word for word in dir(self) if word[0].isalpha()], self._attributes)

    else:  # the methods of add-ons, with the arguments of their functions

        def add_lora(
            self, rank: int = 8, alpha: float | None = None, layers: str | Sequence[str] = "*attention*",
            trainable: str | Sequence[str] = (),
        ) -> None:  # fmt: skip
            """Freeze the model and train low-rank changes (LoRA) to some layers instead."""

        def save_lora(self, path: str | os.PathLike[str]) -> None:
            """Write the low-rank LoRA weights to a file."""

        def load_lora(self, path: str | os.PathLike[str]) -> None:
            """Read low-rank LoRA weights from a file and add them to the model."""

        def merge_lora(self) -> None:
            """Add the low-rank LoRA weights to the model's own weights, for inference without extra layers."""

        def export(self, path: str | os.PathLike[str], opset: int = 21, check: Any = None) -> float | None:
            """Write the net to an ONNX file."""

    def __dir__(self) -> list[str]:
        return [*({*super().__dir__()} - FOR_DSINGA), *registered("method")]
