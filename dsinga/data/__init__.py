"""Opens training records from stores, arrays and data frames. Knows no jobs and no clusters."""

from dsinga.base.components import lazy_names

__getattr__, __dir__ = lazy_names(__name__)  # of __init__.pyi
