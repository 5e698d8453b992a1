"""Opens the records of an input layer: a store, windows, a table, or a user's source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.data import DataSource, RecordSource, open_records
from dsinga.job import LayerConf, Phase, StoreConf
from dsinga.job.component import error_note
from dsinga.job.component import resolve as resolve_class
from dsinga.layers import RecordInfo
from dsinga.net.layer_classes import layer_class


def with_store(layer: LayerConf) -> LayerConf:
    """Return an input layer with its store: bound records, the given store, or its class's own.

    For stores of sites it is the first one.
    """
    if layer.store_conf is not None and layer.store_conf.records is not None:
        return layer
    conf = layer_class(layer).reads(layer)
    if conf is not None and conf.site_path and not conf.path:
        conf = conf.replace(path=conf.site_path[0])
    return layer if conf is layer.store_conf else layer.replace(store_conf=conf)


def open_layer(layer: LayerConf, roots: Sequence[str]) -> tuple[RecordSource, RecordInfo]:
    """Open the records of an input layer, and describe them for building its net."""
    if (opened := layer_class(layer).open_records(layer, roots)) is not None:
        return opened
    conf = layer.store_conf
    if conf is None:
        raise layer.error(f"layer {layer.name!r} needs a store_conf with the path of its records")
    if not conf.batchsize:
        raise conf.error(f"layer {layer.name!r}: store_conf needs a batchsize")
    store = _open_records(layer, conf, roots)
    info = RecordInfo(
        store.columns[0].shape,
        sum(conf.batchsize),
        store.has_labels,
        store.label_range(),
        **moments_of(conf, roots),
        label_shape=store.columns[1].shape if store.has_labels else (),
        **store.codes(),
        label_dtype=store.label_dtype or np.int64,
        label_names=store.classes,
        leads=store.leads,
    )
    return store, info


def augmented_info(layer: LayerConf, info: RecordInfo, dtype: Any, seed: int, phase: Phase) -> tuple[RecordInfo, Any]:
    """Return how augmentation changes the description of records, and the augmentations or None."""
    if layer.store_conf is None or not layer.store_conf.augment:
        return info, None
    first = resolve_class(layer.store_conf.augment[0])
    return first.augmented_info(layer, info, dtype, seed, bool(phase & Phase.kTrain))


def moments_of(conf: StoreConf | None, roots: Sequence[str]) -> dict[str, Any]:
    """Read the mean and std files of an input layer: "mean" and "std", None if not named."""
    paths = {"mean": conf.mean_file, "std": conf.std_file} if conf else {}
    if not any(paths.values()):
        return dict.fromkeys(paths)
    from dsinga.data import read_mean  # which arrays do not need

    return {what: read_mean(path, roots) if path else None for what, path in paths.items()}


def _open_records(layer: LayerConf, conf: StoreConf, roots: Sequence[str]) -> RecordSource:
    if conf.records is not None:
        return conf.records
    if not conf.has_records:
        raise conf.error(f"layer {layer.name!r}: store_conf needs a path, or in Python data=, the arrays of the phase")
    try:
        cls = lookup(conf.kind, conf.type_name)
    except UserError as error:
        raise conf.error(f"layer {layer.name!r}: {error}", "backend") from None
    if cls is not StoreConf:
        return _open_source(layer, conf, cls, roots)
    assert conf.path is not None
    from dsinga.data import open_store, resolve  # which arrays do not need

    for definition in conf.definition.values():
        records: RecordSource = definition.open_records(layer.name, resolve(conf.path, roots), conf.has_label)
        return records
    return open_store(
        conf.path,
        backend=conf.backend,
        roots=roots,
        separator=conf.separator,
        has_label=conf.has_label,
        shape=conf.shape,
        encoded=conf.encoded,
        data=conf.data,
        label=conf.label,
    )


def _open_source(layer: LayerConf, conf: StoreConf, cls: Any, roots: Sequence[str]) -> RecordSource:
    if not (isinstance(cls, type) and issubclass(cls, DataSource)):
        text = f"layer {layer.name!r}: {conf.backend!r} must be registered with a subclass of dsinga.data.DataSource"
        raise conf.error(f"{text}, not {cls!r}", "backend")
    source = cls(conf.path, conf.settings_of(cls.Conf) if cls.Conf else None, roots)
    with error_note(f"in the source {conf.backend} of layer {layer.name!r}"):
        try:
            return open_records(source, roots=roots)
        except UserError as error:
            raise conf.error(f"layer {layer.name!r}: source {conf.backend}: {error}", "backend") from error
