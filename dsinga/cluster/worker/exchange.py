"""The params of one worker as a mapping: a lookup waits for the value, a push sends the gradient."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from dsinga.base.errors import UserError
from dsinga.cluster.server import Slice, fill_buckets
from dsinga.cluster.server.slicing import MIN_BUCKET_BYTES
from dsinga.cluster.transport.interface import URGENT
from dsinga.cluster.worker.bucket_exchange import BucketExchange, Wait
from dsinga.cluster.worker.exchange_options import ExchangeOptions, Meter
from dsinga.cluster.worker.global_clipping import GlobalClipping
from dsinga.cluster.worker.group_links import MOST_BYTES, GroupLinks, open_links
from dsinga.cluster.worker.param_homes import CachedRowsHome, DeviceHome, ParamHome, ReplicatedHome, ServedHome, Shape
from dsinga.cluster.worker.server_client import ServerClient
from dsinga.job import PullTime
from dsinga.ops import Array, Ops, SparseRows
from dsinga.passes.training_step import Updates
from dsinga.training.local_updater import LocalUpdater, check_gradient

# The number of the server that adds and joins arrays for the workers of a group.
COLLECTIVES_SERVER = 0


class Exchange(Updates, Mapping[str, Array]):
    """Exchanges values and gradients of one worker with the servers, by bucket. For one thread at a time.

    Looking up a param waits until its value is of the present step. Pushing a bucket's last gradient sends the bucket
    and requests its new values, which arrive while the layers below still compute.

    Args:
        homes: where each param is kept, in the order of the forward pass.
        clients: by number, the clients of all servers with slices of these params, and of COLLECTIVES_SERVER.
    """

    def __init__(
        self, homes: Sequence[ParamHome], clients: Mapping[int, ServerClient], options: ExchangeOptions,
        meter: Meter | None = None, replicas: LocalUpdater | None = None, clipping: GlobalClipping | None = None,
    ):  # fmt: skip
        self._homes = {home.name: home for home in homes}
        self._shapes = {home.name: home.shape for home in homes}
        self._clients = clients
        self._options = options
        self._meter = meter or Meter()
        self._replicas, self._clipping = replicas, clipping
        self._buckets: list[BucketExchange] = []
        self._bucket_of: dict[int, BucketExchange] = {}
        self._wait = Wait(options.timeout)
        codec = options.codec()
        slices = {home.name: home.slices for home in homes}
        places = {name: place for place, name in enumerate(self._homes, URGENT + 1)}
        limit = options.bucket_bytes
        if limit is None and not any(client.crosses_process for client in clients.values()):
            limit = MIN_BUCKET_BYTES  # a message costs little; gradients need not wait for other params' gradients
        for bucket in fill_buckets(slices, len(clients), limit):
            exchange = BucketExchange(
                bucket, self._homes, clients[bucket.server], options, codec, self._meter, self._wait,
                min(places[slice_.param] for slice_ in bucket.slices),
            )  # fmt: skip
            self._buckets.append(exchange)
            self._bucket_of.update({slice_.id: exchange for slice_ in bucket.slices})
        self._pushed: set[str] = set()
        self._step = 0
        self.meanwhile = deque[Callable[[], None]]()  # what collectives call while they wait for other workers
        self._links: GroupLinks | None = None  # to the group's other workers, if they are processes of this host
        self._has_linked = False

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def shape(self, name: str) -> Shape:
        """Return the shape of a param."""
        return self._shapes[name]

    def __len__(self) -> int:
        return len(self._homes)

    def begin(self, step: int) -> None:
        """Go to step ``step``, and request all values that are not requested yet."""
        started = time.perf_counter()
        self._step = step
        if self._replicas is not None:
            self._replicas.steps = step
        if self._options.pull is PullTime.kAtOnce or not self._options.overlap:
            for bucket in self._buckets:
                if bucket.outdated:
                    bucket.ask(step)
        if not self._options.overlap:
            self.wait_all()
        self._meter.waited += time.perf_counter() - started

    def wait_all(self) -> None:
        """Wait for all values of the present step."""
        for bucket in self._buckets:
            if bucket.outdated:
                bucket.receive(self._step)

    def refresh(self) -> None:
        """Request all values again, because other groups have changed them."""
        self.wait_all()
        for home in self._homes.values():
            home.forget()
        for bucket in self._buckets:
            bucket.outdated = True

    def __getitem__(self, name: str) -> Array:
        """Return a param's value at the present step, waiting if necessary. It must not be changed.

        Raises UserError if a user's algorithm looks a param up after it has pushed its gradient.
        """
        home = self._homes[name]
        if home.cached is not None:
            return home.cached
        if name in self._pushed:  # this step's value has been dropped
            raise UserError(f"param {name!r} was looked up after its gradient was pushed; keep its value until then")
        started = time.perf_counter()
        for slice_ in home.slices:
            bucket = self._bucket_of[slice_.id]
            if bucket.outdated:
                bucket.receive(self._step, name)
        value = home.value()
        self._meter.waited += time.perf_counter() - started
        return value

    def push(self, name: str, gradient: Array) -> None:
        """Accept the gradient of a param; it is sent when its bucket is complete.

        Raises UserError unless it is float32 of the param's shape and the first one of this step.
        """
        started = time.perf_counter()
        check_gradient(name, gradient, self._shapes, self._pushed, self._step)
        self._pushed.add(name)
        home = self._homes[name]
        if not home.slices:
            assert isinstance(home, ReplicatedHome), name
            home.push(gradient)
        for slice_, part in home.split(gradient) if home.slices else ():
            bucket = self._bucket_of[slice_.id]
            if bucket.add(slice_, part) and self._options.overlap:
                bucket.send(self._step)
        self._meter.waited += time.perf_counter() - started

    @property
    def static(self) -> Collection[str]:
        """The replicated params that keep their values, and get no gradients."""
        return self._replicas.static if self._replicas is not None else ()

    def default_gradient(self, name: str) -> Array | SparseRows:
        """Return the gradient of a worker without one (:meth:`ParamHome.default_gradient`)."""
        return self._homes[name].default_gradient()

    def finish(self) -> None:
        """End the present step; params without a gradient get :meth:`ParamHome.default_gradient`."""
        static = self.static
        for name, home in self._homes.items():
            if name not in self._pushed and name not in static:
                if home.is_lasting:
                    self[name]  # waits for the value, because the default is a share of it
                self.push(name, home.default_gradient())
        for bucket in self._buckets:
            if bucket.has_gradients:
                bucket.send(self._step)
        factor = 1.0 if self._clipping is None else self._clip(self._clipping)
        if self._replicas is not None:
            self._replicas.finish(factor)
        self._pushed.clear()
        self._step += 1

    def _clip(self, clipping: GlobalClipping) -> float:
        """Let servers update by clipped gradients; return the factor for replicated params."""
        started = time.perf_counter()
        local = self._replicas.squares if self._replicas is not None else {}
        factor = clipping.clip(self._step, local, self._clients, self._wait, self.all_reduce)
        self._meter.waited += time.perf_counter() - started
        return factor

    def skip(self) -> None:
        """End the present step without a change of any param; nothing may have been pushed.

        All workers of the group must skip it.
        """
        assert not self._pushed, self._pushed
        for bucket in self._buckets:
            bucket.send(self._step, skip=True)
        self._step += 1

    def discard(self) -> None:
        """Forget the gradients of this step of params that the worker updates itself."""
        self._pushed.clear()
        if self._replicas is not None:
            self._replicas.discard()

    def all_reduce(self, key: str, array: Array) -> Array:
        """Return the sum of all workers' arrays, added in the workers' order. A key is used once in a run."""
        if not self._has_linked:
            self._has_linked = True
            self._links = open_links(self._clients[COLLECTIVES_SERVER].worker.number, os.getpid(), self.all_gather)
        what = f"the sum {key!r} over the workers"
        return self._collective("all_reduce", key, array, what, self._links if array.nbytes <= MOST_BYTES else None)

    def all_gather(self, key: str, array: Array) -> Array:
        """Join the rows of all workers, in the workers' order. A key is used once in a run."""
        return self._collective("all_gather", key, array, f"the rows {key!r} of all workers")

    def _collective(self, kind: str, key: str, array: Array, what: str, links: GroupLinks | None = None) -> Array:
        started = time.perf_counter()
        client = self._clients[COLLECTIVES_SERVER]
        reply = client.collective(kind, key, array, links)
        self._meter.waited += time.perf_counter() - started
        while self.meanwhile and not reply.done():
            self.meanwhile.popleft()()
        started = time.perf_counter()
        (result,) = self._wait(reply, what)
        self._meter.count(links is not None or client.crosses_process, array.nbytes + result.nbytes)
        self._meter.waited += time.perf_counter() - started
        return result

    def close(self) -> None:
        """Do nothing, because there is no thread."""

    def disconnect(self) -> None:
        """End the connections to other workers, while no thread uses them."""
        if self._links is not None:
            self._links.close()

    def abort(self, message: str) -> None:
        """End all waits, now and later, with RunError(``message``)."""
        self._wait.aborted = message


def move_local_slices(homes: Sequence[ParamHome], clients: Mapping[int, ServerClient]) -> None:
    """Move slices of this process's servers into the arrays that join them with other hosts' slices."""
    memory: dict[int, dict[int, np.ndarray]] = {}
    for home in homes:
        if not any(clients[slice_.server].crosses_host for slice_ in home.slices):
            continue
        for slice_ in home.slices:
            array = None if clients[slice_.server].crosses_process else home.memory(slice_)
            if array is not None:
                memory.setdefault(slice_.server, {})[slice_.id] = array
    for server, arrays in memory.items():
        clients[server].move(arrays)


def param_homes(
    shapes: Mapping[str, Shape], slices: Sequence[Slice], clients: Mapping[int, ServerClient],
    lasting: Mapping[str, float] | None = None, replicas: LocalUpdater | None = None, ops: Ops | None = None,
) -> list[ParamHome]:  # fmt: skip
    """Decide where a worker keeps each param: from servers, in a cache of rows, or in the worker itself.

    ``lasting`` are the params that are not trained, each with this worker's share of it. ``replicas`` are the params
    that the worker updates itself: all, or all without slices. ``ops`` are the kernels of the worker's device if its
    servers keep slices there.
    """
    slices_of: dict[str, list[Slice]] = {name: [] for name in shapes}
    for slice_ in slices:
        slices_of[slice_.param].append(slice_)
    homes: list[ParamHome] = []
    for name, shape in shapes.items():
        param_slices, share = slices_of[name], (lasting or {}).get(name)
        if replicas is not None and name in replicas.params:
            homes.append(ReplicatedHome(name, shape, param_slices, replicas, share))
        elif ops is not None:
            homes.append(DeviceHome(name, shape, param_slices, share, ops))
        # A single slice on a server of this process needs no cache: the reply is the server's array itself.
        elif any(slice_.width for slice_ in param_slices) and (
            len(param_slices) > 1 or clients[param_slices[0].server].crosses_process
        ):
            homes.append(CachedRowsHome(name, shape, param_slices, share))
        else:
            homes.append(ServedHome(name, shape, param_slices, share))
    return homes
