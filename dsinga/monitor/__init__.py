"""Reporting on a run: its history as rows, in a metrics file, as a progress display and as curves."""

from dsinga.monitor.history import History
from dsinga.monitor.metrics_file import MetricsFile, read_metrics
from dsinga.monitor.panels import Line, Panel, draw_panels
from dsinga.monitor.progress import Progress, show_import, show_progress
from dsinga.monitor.rate_search import RateSearch, has_diverged
from dsinga.monitor.rows import NOT_METRICS, RECOVERY, Row, draw_curves
from dsinga.monitor.run_monitor import RunMonitor
from dsinga.monitor.search_progress import SearchProgress, show_search

__all__ = [
    "NOT_METRICS",
    "RECOVERY",
    "History",
    "Line",
    "MetricsFile",
    "Panel",
    "Progress",
    "RateSearch",
    "Row",
    "RunMonitor",
    "SearchProgress",
    "draw_curves",
    "draw_panels",
    "has_diverged",
    "read_metrics",
    "show_import",
    "show_progress",
    "show_search",
]
