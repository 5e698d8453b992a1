# ruff: noqa: I001  several names a line
from dsinga.addons.pictures.curves_svg import draw_curves as draw_curves
from dsinga.addons.pictures.panels import Line as Line, Panel as Panel, draw_panels as draw_panels
from dsinga.monitor.history import History as History
from dsinga.monitor.rows import NOT_METRICS as NOT_METRICS, RECOVERY as RECOVERY, Row as Row
from dsinga.monitor.progress import Progress as Progress, show_import as show_import, show_progress as show_progress
from dsinga.monitor.run_monitor import (
    MetricsFile as MetricsFile, RunMonitor as RunMonitor, read_metrics as read_metrics,
)  # fmt: skip
