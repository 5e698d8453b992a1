"""Defines RecordsDefinition, the base of messages that define the records of a store, such as ``table { }``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job.component import Settings


class RecordsDefinition(Settings):
    """Base of a store's message that defines records of one kind, and keeps what training learnt from the data.

    Register the function that opens the records, function(source, definition, has_labels), by ``@register("definition",
    "NAME")`` with the message's class name. Put it in another file if jobs should be readable without it.

    Attributes:
        options: extra options of a model's ``predict`` and ``evaluate`` for this kind; each maps to the error for other
            kinds.
        is_encoded: whether the columns of records differ from the source's, so that arrays cannot replace records.
        can_be_cut: whether a part of the records can be held out in order.
    """

    options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    is_encoded: ClassVar[bool] = False
    can_be_cut: ClassVar[bool] = True

    @property
    def coded_columns(self) -> Sequence[str]:
        """The names of a record's columns that hold codes of categories."""
        return ()

    def takes(self, source: Any) -> bool:
        """Whether :meth:`open_records` accepts a source."""
        raise NotImplementedError

    def check_source(self, source: Any) -> None:
        """Raise UserError for a source that the model cannot predict; accept all by default."""

    def open_records(self, layer: str, source: Any, has_labels: bool) -> Any:
        """Return the records of a source for an input layer. Raises JobError."""
        try:
            return lookup("definition", type(self).__name__)(source, self, has_labels)
        except UserError as error:
            raise self.error(f"layer {layer!r}: {error}") from error

    def predicts(self, source: Any) -> bool:
        """Whether :meth:`predict` handles this source; else its records are predicted as usual."""
        return False

    def predict(self, job: Any, params: Any, layers: Any, source: Any, **options: Any) -> Any:
        """Return the outputs of ``layers`` for a source, by a trained job.

        Calls the function registered by ``@register("definition", "NAME.predict")``.
        """
        return lookup("definition", f"{type(self).__name__}.predict")(job, params, layers, source, **options)

    def check_options(self, **labels: Any) -> None:
        """Raise UserError if ``evaluate`` gets labels or weights together with ``options`` of this kind."""

    def evaluate(self, job: Any, params: Any, layers: Any, **options: Any) -> Any:
        """Return the evaluation of ``layers`` with this kind's ``options``, on records bound as ``data=``.

        Calls the function registered by ``@register("definition", "NAME.evaluate")``.
        """
        return lookup("definition", f"{type(self).__name__}.evaluate")(job, params, layers, **options)

    def learnt(self) -> dict[str, str]:
        """Return texts by name of what training learnt from the data. A resumed run must have the same."""
        return {}

    def remark_on_scores(self, layer: str) -> str:
        """Return a note on records that count more than once in scores; "" if none do."""
        return ""
