"""The mathematics of training: back-propagation, updaters, learning rates, initial values."""

from dsinga.train.algorithms import Algorithm, algorithm
from dsinga.train.bp import Metrics, Push, bp, forward
from dsinga.train.initialisers import initial_values, initialise
from dsinga.train.schedules import Schedule, schedule
from dsinga.train.updaters import Updater, create_updater

__all__ = [
    "Algorithm",
    "Metrics",
    "Push",
    "Schedule",
    "Updater",
    "algorithm",
    "bp",
    "create_updater",
    "forward",
    "initial_values",
    "initialise",
    "schedule",
]
