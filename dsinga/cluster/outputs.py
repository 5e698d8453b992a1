"""Writing what output layers collect: kCSVOutput to text, kRecordOutput to a zarr store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dsinga.data import write_store
from dsinga.errors import UserError
from dsinga.job import LayerConf, LayerType

OUTPUTS = (LayerType.kCSVOutput, LayerType.kRecordOutput)


def write_output(layer: LayerConf, batches: Iterable[np.ndarray]) -> str:
    """Write batches (rows, ...) to where the store_conf of an output layer says; return the path.

    A kCSVOutput's file has a line a record, its values joined by ``separator``; a kRecordOutput's is a zarr store of
    records without labels. What was there before is replaced, when the new one is complete.
    """
    conf = layer.store_conf
    assert conf is not None, "checked when the layer was made"
    assert conf.path, "checked when the layer was made"
    if layer.type is LayerType.kRecordOutput:
        write_store(conf.path, ((batch, None) for batch in batches), overwrite=True)
    else:
        _write_csv(Path(conf.path), conf.separator, batches)
    return conf.path


def _write_csv(path: Path, separator: str, batches: Iterable[np.ndarray]) -> None:
    draft = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "w", encoding="utf-8") as file:
            file.writelines(_lines(separator, batches))
        draft.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _lines(separator: str, batches: Iterable[np.ndarray]) -> Iterator[str]:
    for batch in batches:
        for row in batch.reshape(len(batch), -1).tolist():
            yield separator.join(map(repr, row)) + "\n"
