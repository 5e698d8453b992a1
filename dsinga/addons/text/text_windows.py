"""Windows of a text for the rows of a batch: each row reads on in its own part of the text."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from dsinga.addons.text.vocabulary import has_words, read_tokenizer, read_vocabulary
from dsinga.base.components import naming_addons
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.data.column import Column
from dsinga.data.filesystem import imported_name, resolve
from dsinga.data.record_source import RecordSource
from dsinga.data.stores.record_store import RecordStore, is_complete


class TextWindows(RecordSource):
    """A text as records, each a window of T + 1 codes: record s·B + b is row b of the batch of step s (B rows).

    As in SINGA, the text is divided into B streams of equal length. Row b reads stream b, advances by T (``steps``)
    codes a step, and restarts at the stream's end, without codes beyond the last full window.

    If ``labelled``, a record has the first T codes, and its labels (T,) are each one's next code.
    """

    keeps_order = True

    def __init__(self, store: RecordStore, batchsize: int, steps: int, labelled: bool = False):
        data = _WindowColumn(store, batchsize, steps, slice(0, steps if labelled else steps + 1), store.dtype)
        labels = _WindowColumn(store, batchsize, steps, slice(1, steps + 1), np.dtype(np.int64)) if labelled else None
        super().__init__(store.location, data, labels, vocabulary=store.vocabulary)


class _WindowColumn(Column):
    """The data, or the labels, of each window of a text, read in blocks of batch rows."""

    def __init__(self, store: RecordStore, batchsize: int, steps: int, part: slice, dtype: np.dtype):
        self.store, self.batchsize, self.steps = store, batchsize, steps
        self.stream_length = len(store) // batchsize
        windows_per_stream = (self.stream_length - 1) // steps
        if store.shape:
            raise UserError(
                f"{store.location} has records of shape {store.shape}, not the codes of a text; import a text with: "
                "dsinga data import text TEXT DESTINATION"
            )
        if windows_per_stream < 1:
            raise UserError(
                f"{store.location} has {len(store)} codes, too few for {batchsize} rows of {steps + 1}; use a smaller "
                "batchsize or unroll_len"
            )
        self.places = np.arange(part.start, part.stop)
        super().__init__("text", windows_per_stream * batchsize, self.places.shape, dtype, batchsize)

    def load(self, start: int, stop: int) -> np.ndarray:
        window, stream = np.divmod(np.arange(start, stop), self.batchsize)
        starts = stream * self.stream_length + window * self.steps
        codes, _ = self.store.read((starts[:, None] + self.places).reshape(-1))
        return codes.reshape(-1, *self.shape).astype(self.dtype, copy=False)


@public
def open_text(
    path: str | os.PathLike[str], vocab_path: str | os.PathLike[str] | None = None, roots: Sequence[str] = ()
) -> RecordStore:
    """Open a text as a store of codes: an imported store, or a text file with a vocabulary file, as in SINGA's jobs.

    The vocabulary may be a tokenizer.json of Hugging Face.

    A text file is imported once into a store next to it (``input.txt`` into ``input.zarr``), and again when it or its
    vocabulary changes. Raises UserError if ``path`` does not exist, a text file has no vocabulary, or a store has
    another vocabulary than ``vocab_path``.
    """
    location, vocabulary = resolve(path, roots), _resolve_vocabulary(vocab_path, roots)
    if is_complete(location) or location.endswith(".zarr"):
        store = RecordStore(location)
        if vocabulary and _symbols(vocabulary, words=has_words(store.vocabulary)) != store.vocabulary:
            raise UserError(f"{location} was imported with another vocabulary than {vocabulary}; leave vocab_path out")
        return store
    if vocabulary:
        symbols = _symbols(vocabulary)
        with naming_addons("a text that is no store"):
            from dsinga.addons.importers import import_once
        return RecordStore(import_once(location, "text", {"vocabulary": vocabulary}, symbols))
    if is_complete(imported_name(location)):
        return RecordStore(imported_name(location))
    raise UserError(
        f"{location} is a text without a vocabulary; set vocab_path to a file with every character once, or import "
        f"the text with: dsinga data import text {location} {imported_name(location)}"
    )


def _symbols(vocabulary: str, words: bool = False) -> tuple[str, ...]:
    tokenizer = read_tokenizer(vocabulary)
    return read_vocabulary(vocabulary, words) if tokenizer is None else tokenizer.symbols


def _resolve_vocabulary(path: str | os.PathLike[str] | None, roots: Sequence[str]) -> str | None:
    if path is None:
        return None
    try:
        return resolve(path, roots)
    except UserError:  # a store has its own vocabulary, so the file that a SINGA job names may be missing
        return None
