"""Trains nets: algorithms such as back-propagation, optimizers, learning-rate schedules, initial values, metrics."""

from dsinga.base.components import lazy_names
from dsinga.training.bp import Push, bp

__getattr__, __dir__ = lazy_names(__name__)  # of __init__.pyi, those of add-ons included
