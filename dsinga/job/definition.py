"""RecordsDefinition, the base of messages that say what the records of a store are, such as ``table { }``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job.component import Settings


class RecordsDefinition(Settings):
    """Base of a message of a store that defines records of one kind, with what was learnt from the training data.

    ``@register("definition", "NAME")``, with the name of the message's class, registers the function that opens such
    records: it is called with a source, the definition, and whether labels are read. It may be in another file, which
    is not needed to read a job.

    Attributes:
        options: by name, the options of ``predict`` and ``evaluate`` of a model that records of this kind alone have,
            with the error for others.
        is_encoded: whether records have other columns than what they are made of, so that arrays cannot replace them.
        can_be_cut: whether a part of the records, in their order, can be held out.
    """

    options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    is_encoded: ClassVar[bool] = False
    can_be_cut: ClassVar[bool] = True

    def takes(self, source: Any) -> bool:
        """Whether :meth:`open_records` opens a source."""
        raise NotImplementedError

    def check_source(self, source: Any) -> None:
        """Raise UserError for a source of another kind that the trained model cannot predict; by default for none."""

    def open_records(self, layer: str, source: Any, has_labels: bool) -> Any:
        """Return the records of a source that :meth:`takes` tells of, for an input layer. Raises JobError."""
        try:
            return lookup("definition", type(self).__name__)(source, self, has_labels)
        except UserError as error:
            raise self.error(f"layer {layer!r}: {error}") from error

    def predicts(self, source: Any) -> bool:
        """Whether :meth:`predict` predicts a source that a model is given; else its records are predicted like any."""
        return False

    def predict(self, job: Any, params: Any, layers: Any, source: Any, **options: Any) -> Any:
        """Return the outputs of ``layers`` for a source that :meth:`predicts` tells of, by a trained job.

        The function is that of ``@register("definition", "NAME.predict")``.
        """
        return lookup("definition", f"{type(self).__name__}.predict")(job, params, layers, source, **options)

    def check_options(self, **labels: Any) -> None:
        """Raise UserError where ``evaluate`` of a model is given labels or weights beside ``options`` of this kind."""

    def evaluate(self, job: Any, params: Any, layers: Any, **options: Any) -> Any:
        """Return the evaluation of ``layers`` by ``options`` of this kind, for records that are bound as ``data=``.

        The function is that of ``@register("definition", "NAME.evaluate")``.
        """
        return lookup("definition", f"{type(self).__name__}.evaluate")(job, params, layers, **options)

    def learnt(self) -> dict[str, str]:
        """Return, as texts by name, what was learnt from the training data, which a resumed run must have, too."""
        return {}

    def remark_on_scores(self, layer: str) -> str:
        """Return a sentence on records that count more than once in scores; "" where each counts once."""
        return ""
