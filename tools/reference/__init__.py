"""Writes docs/reference/, the pages that say what each name means, from signatures, settings and docstrings.

``python -m tools.reference`` writes them; with ``--check`` it only says which are out of date.
"""
