"""Checks before a run that its Dask workers have kernels and can load the user's code and read the job's records."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distributed import Client
from distributed.protocol.pickle import dumps

from dsinga.errors import UserError
from dsinga.net import NeuralNet
from dsinga.ops import get_ops
from dsinga.registry import is_user_code
from dsinga.worker.batch_reader import BatchReader


def check_user_code(
    client: Client, addresses: Iterable[str], nets: Iterable[NeuralNet], objects: Mapping[str, Any] | None = None
) -> None:
    """Raise UserError unless the Dask workers have kernels and can load the user's layers and other objects.

    Pickle sends a class that was defined in a script or a notebook by value; the worker imports one of a module. A
    worker that cannot load an argument of a task would be ended by Dask, so this is checked before any task is sent.

    Args:
        client: the client of the cluster.
        addresses: the Dask workers.
        nets: the nets whose layers are checked.
        objects: other objects that may be of a user's class, such as the updater, by their names in errors.
    """
    for address, trouble in client.run(_kernels_missing, workers=sorted(addresses), on_error="ignore").items():
        if trouble:
            raise UserError(f"the Dask worker {address} has no kernels: {trouble}")
    layers = {f"layer {node.layer.name!r}": node.layer for net in nets for node in net.nodes}
    user_objects = {name: value for name, value in {**(objects or {}), **layers}.items() if is_user_code(value)}
    for name, value in user_objects.items():
        try:
            pickled = dumps(value)
        except Exception as error:
            raise UserError(f"{name} cannot be sent to Dask workers: {error}; keep no files or locks in it") from error
        for address, trouble in _load_troubles(client, addresses, pickled):
            raise UserError(
                f"the Dask worker {address} cannot load {name}: {trouble}; install the module of its class on that "
                "worker, or send the module by client.upload_file"
            )


def check_stores(client: Client, addresses: Iterable[str], readers: Iterable[BatchReader]) -> None:
    """Raise UserError unless every Dask worker can open the readers' stores, by their path or URL."""
    stores = (store for reader in readers for store in reader.stores.values() if store.from_files)
    for store in {store.location: store for store in stores}.values():
        for address, trouble in _load_troubles(client, addresses, dumps(store)):
            raise UserError(
                f"the Dask worker {address} cannot read {store.location}: {trouble}; put the records where every "
                "worker finds them by the same path or URL"
            )


def _load_troubles(client: Client, addresses: Iterable[str], pickled: bytes) -> Iterator[tuple[str, str]]:
    """Yield the address of each Dask worker that cannot load a pickled object, and the error there."""
    troubles = client.run(_load_trouble, pickled, workers=sorted(addresses), on_error="ignore")
    yield from ((address, trouble) for address, trouble in troubles.items() if trouble)


def _kernels_missing() -> str:
    """Return why this process has no kernels (DSINGA_OPS may be wrong here), or the empty string."""
    try:
        get_ops()
    except UserError as error:
        return str(error)
    return ""


def _load_trouble(pickled: bytes) -> str:
    """Return the error of loading a pickled object in this process, or the empty string."""
    try:
        pickle.loads(pickled)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
