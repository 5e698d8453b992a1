"""Defines RecordsDefinition, with which a job makes records of data, such as windows of a Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job.component import Settings


class RecordsDefinition(Settings):
    """Base class for the part of a job that says how records are made of data, such as ``table { }``.

    It also keeps what training learnt from the data. Register the function that opens the records, function(source,
    definition, has_labels), by ``@register("definition", "NAME")`` with the class name.

    Attributes:
        options: extra options of a model's ``predict`` and ``evaluate``, each with the error for other kinds.
        is_encoded: whether the columns of records differ from the source's, so that arrays cannot replace records.
        can_be_cut: whether a part of the records can be held out in order.
    """

    options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    is_encoded: ClassVar[bool] = False
    can_be_cut: ClassVar[bool] = True

    @property
    def coded_columns(self) -> Sequence[str]:
        """The names of the columns that hold codes of categories."""
        return ()

    def takes(self, source: Any) -> bool:
        """Whether records can be made of ``source``, such as a data frame."""
        raise NotImplementedError

    def check_source(self, source: Any) -> None:
        """Raise UserError for data that a trained model cannot predict; accept all by default."""

    def open_records(self, layer: str, source: Any, has_labels: bool) -> Any:
        """Make the records of an input layer from a source, such as a data frame. Raises JobError."""
        try:
            return lookup("definition", type(self).__name__)(source, self, has_labels)
        except UserError as error:
            raise self.error(f"layer {layer!r}: {error}") from error

    def predicts(self, source: Any) -> bool:
        """Whether :meth:`predict` handles a source; else its records are predicted as usual."""
        return False

    def predict(self, job: Any, params: Any, layers: Any, source: Any, **options: Any) -> Any:
        """Predict a source, such as a Dataset, by a trained job: return the outputs of ``layers``.

        It is registered by ``@register("definition", "NAME.predict")``.
        """
        return lookup("definition", f"{type(self).__name__}.predict")(job, params, layers, source, **options)

    def check_options(self, **labels: Any) -> None:
        """Raise UserError for labels or weights that contradict this kind's ``options`` of ``evaluate``."""

    def evaluate(self, job: Any, params: Any, layers: Any, **options: Any) -> Any:
        """Evaluate ``layers`` on the job's bound records with this kind's own ``options``.

        It is registered by ``@register("definition", "NAME.evaluate")``.
        """
        return lookup("definition", f"{type(self).__name__}.evaluate")(job, params, layers, **options)

    def learnt(self) -> dict[str, str]:
        """Return texts, by name, about the training data, which a resumed run must share."""
        return {}

    def remark_on_scores(self, layer: str) -> str:
        """Say if scores count some records more than once; "" if none do."""
        return ""
