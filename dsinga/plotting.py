"""Pictures by Matplotlib: images, wrong predictions, confusion matrices, curves of scores, returns of agents.

They need Matplotlib: ``pip install 'dsinga[plot]'``. The metrics of a run are drawn by its history,
:meth:`dsinga.monitor.History.plot`. Each function returns Matplotlib's axes, as pandas does.
"""

from dsinga.monitor.curve_plots import plot_precision_recall_curve as precision_recall_curve
from dsinga.monitor.curve_plots import plot_roc_curve as roc_curve
from dsinga.monitor.history_plot import plot_returns as returns
from dsinga.monitor.record_plots import plot_confusion_matrix as confusion_matrix
from dsinga.monitor.record_plots import plot_images as images
from dsinga.monitor.record_plots import plot_wrong_predictions as wrong_predictions

__all__ = ["confusion_matrix", "images", "precision_recall_curve", "returns", "roc_curve", "wrong_predictions"]
