"""Reports on a run: keeps its history and metrics file, and shows progress and curves."""

from dsinga.base.components import lazy_names

__getattr__, __dir__ = lazy_names(__name__)  # of __init__.pyi, those of add-ons included
