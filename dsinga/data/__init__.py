"""Sources of records: stores, arrays, data frames, and the columns behind them. Knows no jobs and no clusters."""

from dsinga.base.components import lazy_names

__getattr__, __dir__ = lazy_names(__name__)  # of __init__.pyi
