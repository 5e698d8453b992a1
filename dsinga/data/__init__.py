"""Sources of records: record stores, arrays, data frames, Datasets; importers. Knows no jobs and no clusters."""

from dsinga.base.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)  # of __init__.pyi
