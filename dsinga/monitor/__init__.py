"""Reporting on a run: its history as rows, in a metrics file, and as a progress display."""

from typing import TYPE_CHECKING

from dsinga.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from dsinga.monitor.history import History
    from dsinga.monitor.metrics_file import MetricsFile, read_metrics
    from dsinga.monitor.progress import Progress, show_import, show_progress
    from dsinga.monitor.rows import NOT_METRICS, RECOVERY, Row
    from dsinga.monitor.run_monitor import RunMonitor
else:
    __getattr__, __dir__ = lazy_names(__name__)
