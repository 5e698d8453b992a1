"""The models of ``dsinga.nn``: ``Model``, ``Sequential`` and models made from jobs, with ``fit`` and ``predict``."""
