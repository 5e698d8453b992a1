"""Exchanges a bucket of slices (parts of params) with its server: sends gradients, receives values or sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.cluster.server import Bucket, Codec, Slice
from dsinga.cluster.server.service import NO_GRADIENT
from dsinga.cluster.transport.interface import URGENT, Reply, wait_for
from dsinga.cluster.worker.exchange_options import ExchangeOptions, Meter, encode
from dsinga.cluster.worker.param_homes import ParamHome, ReplicatedHome
from dsinga.cluster.worker.server_client import ServerClient
from dsinga.job import PullTime
from dsinga.ops import Array, SparseRows


class Wait:
    """Waits for replies, up to ``timeout`` seconds, or until ``aborted`` has the reason for the run's end."""

    def __init__(self, timeout: float):
        self._timeout = timeout
        self.aborted: str | None = None

    def __call__(self, reply: Reply, what: str) -> Any:
        """Wait for a reply and return its result; errors name ``what`` (:func:`wait_for`)."""
        return wait_for(reply, self._timeout, what, lambda: self.aborted)


class BucketExchange:
    """A worker's exchange of a bucket: slices of one server, sent together. For one thread at a time.

    Args:
        homes: the slices' params, by name; either all of them are replicated or none.
        priority: of its messages between hosts: the number of its first param in the forward pass.
    """

    def __init__(
        self, bucket: Bucket, homes: Mapping[str, ParamHome], client: ServerClient, options: ExchangeOptions,
        codec: Codec | None, meter: Meter, wait: Wait, priority: int = URGENT,
    ):  # fmt: skip
        self.server, self.slices = bucket
        self._homes = {slice_.id: homes[slice_.param] for slice_ in self.slices}
        self._replicated = isinstance(homes[self.slices[0].param], ReplicatedHome)
        self._client, self._codec = client, codec
        self._at_once = options.pull is PullTime.kAtOnce
        self._meter, self._wait, self._priority = meter, wait, priority
        self._gradients: dict[int, Array] = {}
        self._reply: Reply | None = None
        self._skipped = False  # whether the next reply is for a step that changes nothing
        self.outdated = not self._replicated  # whether values of the present step have not arrived

    @property
    def has_gradients(self) -> bool:
        """Whether a gradient has been added since gradients were last sent."""
        return bool(self._gradients)

    def add(self, slice_: Slice, gradient: Array | SparseRows) -> bool:
        """Add the gradient of a slice; return whether the bucket is complete."""
        self._gradients[slice_.id] = gradient
        return len(self._gradients) == len(self.slices)

    def send(self, step: int, skip: bool = False) -> None:
        """Send the gradients of ``step``, or a note that it is skipped, and request the new values."""
        if self.outdated:  # no lookup has received the last values; summed gradients among them must be applied
            self.receive(step)
        for slice_ in self.slices:
            self._homes[slice_.id].pushed(slice_)
        gradients = dict.fromkeys(self._homes, NO_GRADIENT) if skip else self._encoded()
        self._gradients = {}
        self._skipped = skip and self._replicated
        self.outdated = True
        if self._at_once:
            self._reply = self._client.push_pull(
                step, gradients, self._versions(), skip, self._memory(), self._priority
            )
        else:
            self._client.push(step, gradients, skip, self._priority)
        self._meter.count(self._client.crosses_process, sum(gradient.nbytes for gradient in gradients.values()))

    def _encoded(self) -> dict[int, Array]:
        if self._codec is None:
            return self._gradients
        trained = {id: gradient for id, gradient in self._gradients.items() if not self._homes[id].is_lasting}
        return self._gradients | encode(self._codec, trained, self._client.crosses_process)

    def ask(self, step: int) -> None:
        """Request the values of ``step``, unless they were requested."""
        if self._reply is None:
            ids = [slice_.id for slice_ in self.slices]
            self._reply = self._client.pull(ids, step, self._versions(), self._memory(), self._priority)

    def receive(self, step: int, name: str = "") -> None:
        """Wait for the values of ``step``, or for summed gradients; errors name the param ``name``."""
        self.ask(step)
        assert self._reply is not None
        reply, self._reply = self._reply, None
        name = name or self.slices[0].param
        values = self._wait(reply, f"the value of {name!r} at step {step} from server {self.server}")
        self.outdated = False
        self._meter.count(self._client.crosses_process, sum(value.nbytes for value in values.values()))
        skipped, self._skipped = self._skipped, False
        if skipped:
            return
        for slice_ in self.slices:
            value = values[slice_.id]
            if self._codec is not None and value.dtype == np.uint8:
                value = self._codec.decode(value, slice_.size)
            self._homes[slice_.id].arrived(slice_, value, step)

    def _memory(self) -> list[np.ndarray]:
        """Return memory for the next values of all slices; empty if the transport has its own."""
        if not self._client.crosses_host:
            return []
        memory = [self._homes[slice_.id].memory(slice_) for slice_ in self.slices]
        arrays = [array for array in memory if array is not None]
        return arrays if len(arrays) == len(memory) else []

    def _versions(self) -> dict[int, int]:
        since: dict[int, int] = {}
        for slice_ in self.slices:
            versions = self._homes[slice_.id].versions()
            if slice_.id in versions:
                since[slice_.id] = versions[slice_.id]
        return since
