"""Whether a user's own code reaches the Dask workers: asked before anything is sent that would end a worker."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Client
from distributed.protocol.pickle import dumps

from dsinga.errors import UserError
from dsinga.net import NeuralNet


def check_travels(
    client: Client, addresses: Iterable[str], nets: Iterable[NeuralNet], others: Mapping[str, Any] | None = None
) -> None:
    """Raise UserError unless every worker can load the user's own layers, and ``others`` by what errors call them.

    A class that was defined in a script or a notebook travels by value; one of a module is imported over there. Dask
    ends a worker that cannot load what it is sent.
    """
    own = {what: one for what, one in (others or {}).items() if is_own(one)}
    layers = [node.layer for net in nets for node in net.nodes]
    own.update({f"layer {layer.name!r}": layer for layer in layers if is_own(layer)})
    for what, one in own.items():
        try:
            packed = dumps(one)
        except Exception as error:
            raise UserError(f"{what} cannot be sent to Dask workers: {error}; keep no files or locks in it") from error
        answers = client.run(_trouble, packed, workers=sorted(addresses), on_error="ignore")
        for address, trouble in answers.items():
            if trouble:
                raise UserError(
                    f"the Dask worker {address} cannot load {what}: {trouble}; install the module that it is defined "
                    "in there, or send it by client.upload_file"
                )


def is_own(one: Any) -> bool:
    """Whether an object, or a function, is of code outside this package."""
    named = one if hasattr(one, "__name__") else type(one)
    return bool(named.__module__.partition(".")[0] != "dsinga")


def _trouble(packed: bytes) -> str:
    """Return what goes wrong where this runs when the object is loaded, or the empty string."""
    try:
        pickle.loads(packed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
