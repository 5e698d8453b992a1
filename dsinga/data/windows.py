"""Pieces of a text for the rows of a batch, each row reading on in its own part of the text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.data.auto_import import imported
from dsinga.data.paths import imported_name, resolve
from dsinga.data.store import RecordStore, is_complete
from dsinga.data.vocabulary import of_words, read_vocabulary
from dsinga.errors import UserError


class Windows:
    """The records of a text: record s·B + b is what row b of a batch of B reads in step s, in order.

    As in SINGA the text is cut into B streams of equal length; row b goes along stream b, ``steps`` T codes further in
    each step, and reads T + 1 codes. At the end of its stream it begins again; codes beyond the last whole piece are
    left out (SINGA reads them, and on into what comes after the stream, at the end of the text beyond its memory).

    Raises UserError for a text too short for one step.
    """

    has_labels = False
    label_shape: tuple[int, ...] = ()

    def __init__(self, store: RecordStore, batchsize: int, steps: int):
        self.store, self.batchsize, self.steps = store, batchsize, steps
        self.stream = len(store) // batchsize
        self.rounds = (self.stream - 1) // steps
        if store.shape:
            raise UserError(
                f"{store.location} has records of shape {store.shape}, not the codes of a text; make one with: "
                "dsinga data import text TEXT DESTINATION"
            )
        if self.rounds < 1:
            raise UserError(
                f"{store.location} has {len(store)} codes, too few for {batchsize} rows of {steps + 1}; use a smaller "
                "batchsize or unroll_len"
            )
        self.shape = (steps + 1,)
        self.location, self.vocabulary, self.block = store.location, store.vocabulary, batchsize

    @property
    def record_bytes(self) -> int:
        """Bytes of the codes that a row reads in one step."""
        return (self.steps + 1) * self.store.dtype.itemsize

    def __len__(self) -> int:
        return self.rounds * self.batchsize

    def read(self, rows: Any) -> tuple[np.ndarray, None]:
        """Return the records (n, T + 1) of ``rows``, in the order asked, in the store's dtype; there are no labels."""
        turn, row = np.divmod(np.asarray(rows, np.int64), self.batchsize)
        starts = row * self.stream + turn * self.steps
        codes, _ = self.store.read((starts[:, None] + np.arange(self.steps + 1)).reshape(-1))
        return codes.reshape(-1, self.steps + 1), None

    def label_range(self) -> None:
        """Return None: there are no labels."""


def open_text(
    path: str | os.PathLike[str], vocab_path: str | os.PathLike[str] | None = None, roots: Sequence[str] = ()
) -> RecordStore:
    """Open a text as a store of codes: one that was imported, or a file with its vocabulary, as SINGA's jobs have it.

    A file is imported once into a store beside it (``input.txt`` into ``input.zarr``), and again when it or its
    vocabulary changes. Raises UserError where nothing is there, a file has no vocabulary, or a store another one than
    ``vocab_path``.
    """
    location, vocabulary = resolve(path, roots), _found(vocab_path, roots)
    if is_complete(location) or location.endswith(".zarr"):
        store = RecordStore(location)
        if vocabulary and read_vocabulary(vocabulary, words=of_words(store.vocabulary)) != store.vocabulary:
            raise UserError(f"{location} was imported with another vocabulary than {vocabulary}; leave vocab_path out")
        return store
    if vocabulary:
        symbols = read_vocabulary(vocabulary)
        return RecordStore(imported(location, "text", {"vocabulary": vocabulary}, symbols))
    if is_complete(imported_name(location)):
        return RecordStore(imported_name(location))
    raise UserError(
        f"{location} is a text without a vocabulary; give vocab_path, a file with every character once, or import "
        f"it by: dsinga data import text {location} {imported_name(location)}"
    )


def _found(path: str | os.PathLike[str] | None, roots: Sequence[str]) -> str | None:
    if path is None:
        return None
    try:
        return resolve(path, roots)
    except UserError:  # a store knows what its codes are: SINGA's job names a file that is not wanted then
        return None
