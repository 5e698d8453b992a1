"""Reporting on a run: its history as rows, in a metrics file, as a progress display and as curves."""

from dsinga.base.components import lazy_names

__getattr__, __dir__ = lazy_names(__name__)  # of __init__.pyi, those of add-ons included
