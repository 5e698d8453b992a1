"""Whether a user's own code and records reach the Dask workers: asked before what would end a worker is sent."""

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
    client: Client, addresses: Iterable[str], nets: Iterable[NeuralNet], others: Mapping[str, Any] | None = None
) -> None:
    """Raise UserError unless every worker has kernels and can load the user's own layers and ``others``.

    ``others`` are by what errors call them.

    A class that was defined in a script or a notebook travels by value; one of a module is imported over there. Dask
    ends a worker that cannot load what it is sent.
    """
    for address, trouble in client.run(_kernels_missing, workers=sorted(addresses), on_error="ignore").items():
        if trouble:
            raise UserError(f"the Dask worker {address} has no kernels: {trouble}")
    own = {what: one for what, one in (others or {}).items() if is_user_code(one)}
    layers = [node.layer for net in nets for node in net.nodes]
    own.update({f"layer {layer.name!r}": layer for layer in layers if is_user_code(layer)})
    for what, one in own.items():
        try:
            packed = dumps(one)
        except Exception as error:
            raise UserError(f"{what} cannot be sent to Dask workers: {error}; keep no files or locks in it") from error
        for address, trouble in _troubles(client, addresses, packed):
            raise UserError(
                f"the Dask worker {address} cannot load {what}: {trouble}; install the module that it is defined "
                "in there, or send it by client.upload_file"
            )


def check_stores(client: Client, addresses: Iterable[str], readers: Iterable[BatchReader]) -> None:
    """Raise UserError unless every worker finds the stores: what travels is where they lie, not their records."""
    for store in {store.location: store for reader in readers for store in reader.stores.values()}.values():
        for address, trouble in _troubles(client, addresses, dumps(store)):
            raise UserError(
                f"the Dask worker {address} cannot read {store.location}: {trouble}; put the records where every "
                "worker finds them by the same path or URL"
            )


def _troubles(client: Client, addresses: Iterable[str], packed: bytes) -> Iterator[tuple[str, str]]:
    """Yield the workers that cannot load the pickled object, each with what goes wrong there."""
    answers = client.run(_trouble, packed, workers=sorted(addresses), on_error="ignore")
    yield from ((address, trouble) for address, trouble in answers.items() if trouble)


def _kernels_missing() -> str:
    """Return why kernels cannot be had where this runs, as when DSINGA_OPS is wrong there, or the empty string."""
    try:
        get_ops()
    except UserError as error:
        return str(error)
    return ""


def _trouble(packed: bytes) -> str:
    """Return what goes wrong where this runs when the object is loaded, or the empty string."""
    try:
        pickle.loads(packed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
