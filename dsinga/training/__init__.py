"""Training algorithms (back-propagation, contrastive divergence), updaters, schedules, initialisers and metrics."""

from dsinga.training.algorithms import Algorithm, accumulate, algorithm, check_algorithm_metrics
from dsinga.training.beam_search import Hypothesis, beam_search
from dsinga.training.bleu import BleuCounts, bleu, bleu_counts
from dsinga.training.bp import Push, bp
from dsinga.training.forward_pass import forward
from dsinga.training.initialisers import Initialiser, check_params, check_start, initial_values, initialise
from dsinga.training.metrics import Metrics, add_metrics, declared_metrics, name_metrics
from dsinga.training.schedules import Schedule, schedule
from dsinga.training.updater import Updater, check_patterns, create_updater, describe_settings
