"""Records that libraries give by number: datasets of PyTorch, Hugging Face and grain, and what is like them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_of
from dsinga.data.sources.batch_sequences import Batches
from dsinga.data.sources.drawn_records import Parts

BLOCK = 256  # records that are shuffled together
LABELS = ("label", "labels", "y", "target", "targets")


class ItemBatches(Batches):
    """The records of a dataset, x, (x, y), (x, y, sample_weight) or a dict, as batches of one record.

    Records that a library has in arrays, where no code of the user changes them, are in batches of 256.
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | None = None, names: Sequence[str | None] = (None, None)):
        self.numbers, self.names = range(len(dataset)) if indices is None else indices, names
        self.in_columns = is_of(dataset, "datasets", "Dataset") and dataset.format["type"] != "custom"
        self.in_tensors = type(dataset).__module__.startswith("torch.") and type(dataset).__name__ == "TensorDataset"
        if self.in_columns:  # the columns that its format shows
            dataset = dataset.with_format("numpy", columns=dataset.format["columns"])
        # Records of grain go on after the last one, with other random numbers.
        self.later = len(dataset) if is_of(dataset, "grain", "MapDataset") else 0
        self.step = BLOCK if self.in_columns or self.in_tensors else 1
        super().__init__(dataset, -(-len(self.numbers) // self.step), BLOCK)

    def named(self, number: int) -> str:
        """Return what messages call a batch."""
        numbers = self.numbers[number * self.step : (number + 1) * self.step]
        last = f" to {numbers[-1]}" if len(numbers) > 1 else ""
        return f"record {numbers[0]}{last} of the {type(self.sequence).__name__}"

    def make(self, number: int, seed: int, epoch: int) -> Parts:
        """Return the parts of records, (n, ...)."""
        numbers = list(self.numbers[number * self.step : (number + 1) * self.step])
        if self.in_tensors:
            return tuple(np.asarray(tensor)[numbers] for tensor in self.sequence.tensors)
        item = self.sequence[numbers if self.in_columns else numbers[0] + self.later * epoch]
        if isinstance(item, Mapping):
            item = columns(item, f"the {type(self.sequence).__name__}", *self.names)
        parts = item if isinstance(item, (tuple, list)) else (item,)
        return tuple(np.asarray(part) if self.in_columns else np.asarray(part)[None] for part in parts)


def columns(batch: Mapping[str, Any], owner: str, data: str | None = None, label: str | None = None) -> tuple[Any, ...]:
    """Return (x, y) of a batch by names: the labels, and the one other column. Raises UserError for more columns."""
    labels = [name for name in batch if (name in LABELS if label is None else name == label)]
    others = [name for name in batch if name not in labels and data in (None, name)]
    if len(others) != 1 or len(labels) > 1 or (label and not labels):
        raise UserError(
            f"the records of {owner} have {', '.join(map(str, batch))}; leave one column of records, and one of labels "
            f"that is called {' or '.join(LABELS[:2])}, or name both, as in dsinga.data.open_records(dataset, "
            f"data={(others or ['x'])[0]!r}, label={(labels or ['label'])[0]!r})"
        )
    return tuple(batch[name] for name in [*others, *labels])
