from dsinga.addons.pictures.history_plot import draw_curves
from dsinga.addons.pictures.panels import Line, Panel, draw_panels
from dsinga.monitor.history import NOT_METRICS, RECOVERY, History, Row
from dsinga.monitor.progress import Progress, show_import, show_progress
from dsinga.monitor.run_monitor import MetricsFile, RunMonitor, read_metrics

__all__ = [
    "NOT_METRICS", "RECOVERY", "History", "Line", "MetricsFile", "Panel", "Progress", "Row", "RunMonitor",
    "draw_curves", "draw_panels", "read_metrics", "show_import", "show_progress",
]  # fmt: skip
