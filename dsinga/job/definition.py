"""RecordsDefinition, the base of messages that say what the records of a store are, such as ``table { }``."""

from __future__ import annotations

from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job.component import Settings


class RecordsDefinition(Settings):
    """Base of a message of a store that defines records of one kind, with what was learnt from the training data.

    ``@register("definition", "NAME")``, with the name of the message's class, registers the function that opens such
    records: it is called with a source, the definition, and whether labels are read. It may be in another file, which
    is not needed to read a job.
    """

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

    def learnt(self) -> dict[str, str]:
        """Return, as texts by name, what was learnt from the training data, which a resumed run must have, too."""
        return {}

    def remark_on_scores(self, layer: str) -> str:
        """Return a sentence on records that count more than once in scores; "" where each counts once."""
        return ""
