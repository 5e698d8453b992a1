"""The mark ``scaled { }`` in a job: its net needs the estimator that scales its inputs and outputs."""

from __future__ import annotations

from typing import Any, NoReturn

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.record_source import RecordSource
from dsinga.job.component import setting
from dsinga.job.definition import RecordsDefinition


@register("message", "StoreConf.scaled")
class ScaledRecords(RecordsDefinition):
    """Marks a net that needs its estimator, which scales records or targets outside the net."""

    by: str = setting("", "the estimator that trained the net, such as Regressor")

    def check_source(self, source: Any) -> NoReturn:
        """Raise UserError, because the net alone accepts no records."""
        raise UserError(
            f"the net was trained by a {self.by}, which scales records and targets outside the net; call predict of "
            "the estimator, which dsinga.estimators.load(folder) reads, or its export"
        )

    def takes(self, source: Any) -> bool:
        """Return True, so that every source is opened here, and refused."""
        return True

    def open_records(self, layer: str, source: Any, has_labels: bool) -> RecordSource:
        """Raise UserError, because the net alone accepts no records."""
        self.check_source(source)
