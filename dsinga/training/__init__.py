"""Training algorithms (back-propagation, contrastive divergence), updaters, schedules, initialisers and metrics."""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names
from dsinga.training.bp import Push, bp

if TYPE_CHECKING:
    from dsinga.training.algorithms import Algorithm, accumulate, algorithm, check_algorithm_metrics
    from dsinga.training.bleu_score import BleuCounts, bleu, bleu_counts
    from dsinga.training.forward_pass import forward
    from dsinga.training.initialisers import Initialiser, check_params, check_start, initial_values, initialise
    from dsinga.training.metrics import Metrics, add_metrics, declared_metrics, name_metrics
    from dsinga.training.schedules import Schedule, schedule
    from dsinga.training.updater import Updater, check_patterns, create_updater, describe_settings
else:
    __getattr__, __dir__ = lazy_names(__name__)
