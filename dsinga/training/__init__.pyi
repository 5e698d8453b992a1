# ruff: noqa: I001  several names a line
from dsinga.addons.text.bleu_score import BleuCounts as BleuCounts, bleu as bleu, bleu_counts as bleu_counts
from dsinga.training.algorithms import (
    Algorithm as Algorithm, accumulate as accumulate, algorithm as algorithm,
    check_algorithm_metrics as check_algorithm_metrics,
)  # fmt: skip
from dsinga.training.bp import Push as Push, bp as bp
from dsinga.training.forward_pass import forward as forward
from dsinga.training.initialisers import (
    Initialiser as Initialiser, check_params as check_params, check_start as check_start,
    initial_values as initial_values, initialise as initialise,
)  # fmt: skip
from dsinga.training.metrics import (
    Metrics as Metrics, add_metrics as add_metrics, declared_metrics as declared_metrics, name_metrics as name_metrics,
)  # fmt: skip
from dsinga.training.schedules import Schedule as Schedule, schedule as schedule
from dsinga.training.updater import (
    Updater as Updater, check_patterns as check_patterns, create_updater as create_updater,
    describe_settings as describe_settings,
)  # fmt: skip
