"""Reporting on a run: its history as rows, in a metrics file, as a progress display and as curves."""

from dsinga.monitor.history import History
from dsinga.monitor.metrics_file import MetricsFile, read_metrics
from dsinga.monitor.panels import Line, Panel, draw_panels
from dsinga.monitor.progress import Progress, show_import, show_progress
from dsinga.monitor.rows import NOT_METRICS, RECOVERY, Row, draw_curves
from dsinga.monitor.run_monitor import RunMonitor

__all__ = [
    "NOT_METRICS",
    "RECOVERY",
    "History",
    "Line",
    "MetricsFile",
    "Panel",
    "Progress",
    "Row",
    "RunMonitor",
    "draw_curves",
    "draw_panels",
    "read_metrics",
    "show_import",
    "show_progress",
]
