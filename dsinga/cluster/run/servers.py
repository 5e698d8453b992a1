"""The driver's handle of a run's parameter servers: creates them, gives them values, links and calls them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distributed import Client, Future

from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import WorkerLost
from dsinga.base.registry import lookup
from dsinga.cluster.dask.dask_workers import host, process
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.run_tasks import generation_text, submit_to, task_key
from dsinga.cluster.dask.supervision import Check, check_workers, gather, no_check
from dsinga.cluster.dask.worker_memory import Packed
from dsinga.cluster.on_workers.server_actor import ServerActor, connect_server, link_server
from dsinga.cluster.server import routes
from dsinga.cluster.transport.interface import wait_for
from dsinga.cluster.worker.config import ServerKey, WorkerConfig
from dsinga.cluster.worker.param_slices import group_state, slice_specs, sliced_values
from dsinga.job import Compression

# The values and the updater's state of the slices of a server, by slice id and slot.
ServerValues = tuple[dict[int, Any], dict[int, Any] | None]


class Servers:
    """Creates and calls the parameter servers of all server groups of a run, each an Actor on a Dask worker.

    Methods raise RunError if a Dask worker is lost, or if a server does not answer in time.
    """

    def __init__(self, client: Client, config: WorkerConfig, placement: Placement, check: Check = no_check):
        self._client = client
        self._check = check
        self._config = config
        self._placement = placement
        self._actors: dict[ServerKey, Any] = {}
        self.futures: list[Future] = []

    def create(self, step: int) -> None:
        """Create all servers, for worker groups that begin with ``step``."""
        config = self._config
        self._create(
            [
                ServerKey(config.run, config.generation, group, server, config.secret)
                for group, addresses in enumerate(self._placement.servers)
                for server in range(len(addresses))
            ],
            step,
        )

    def _create(self, keys: Sequence[ServerKey], step: int) -> None:
        topology, specs, futures = self._config.topology, slice_specs(self._config), []
        updater = Packed(self._config.updater)
        for key in keys:
            server_specs = [spec for spec in specs if spec.slice.server == key.server]
            remote = self._remote_clients(key)
            arguments = (
                key, server_specs, updater, topology.worker_groups(key.group), step, topology.staleness,
                self._config.options.timeout, self._config.options.codec(), bool(remote),
                topology.groups == topology.server_groups == 1, host(self._address(key)) in map(host, remote),
                None if remote else self._device(key.group),
            )  # fmt: skip
            futures.append(self._submit(ServerActor, key, "start server", *arguments, actor=True))
        self.futures += futures
        actors = self._actors | dict(zip(keys, self._gather(futures), strict=True))
        self._actors = {key: actors[key] for key in sorted(actors, key=lambda key: (key.group, key.server))}

    def _device(self, group: int) -> int | None:
        """Return the GPU on which a server group keeps its slices, the workers', if all can; else None."""
        config = self._config
        on_host = config.updater.conf.clip_global_norm or config.options.compression is not Compression.kNone
        if on_host or config.topology.linked_groups(group) or any(slice_.width for slice_ in config.slices):
            return None
        groups = config.topology.worker_groups(group)
        devices = {self._placement.device(group, n) for group in groups for n in range(config.topology.workers)}
        return devices.pop() if len(devices) == 1 else None

    def replace_lost(self, placement: Placement, check: Check, generation: int) -> None:
        """Create again, as ``generation``, the servers that ``placement`` moves; the others go on.

        They get the values of a linked server group.
        """
        lost = [key for key in self._actors if placement.servers[key.group][key.server] != self._address(key)]
        self._placement, self._check = placement, check
        for key in lost:
            del self._actors[key]
        keys = [key._replace(generation=generation) for key in lost]
        first = {key: self._values_from_links(key) for key in keys}
        self._create(keys, 0)
        self._put(first)
        futures = [self._connect(key) for key in keys] if self._config.topology.edges else []
        self._gather(futures)
        self._gather([self._link(other, key) for key in keys for other in self._linked(key) if other not in keys])

    def restart(self, group: int, generation: int, step: int) -> int:
        """Restart a worker group at all its servers; return its first step, at least ``step``."""
        for _ in range(2):  # the second time with the highest of all answers
            step = max([step, *self.call(group, "restart", group, generation, step)])
        return step

    def _values_from_links(self, key: ServerKey) -> ServerValues:
        linked = self._linked(key)
        source = linked[0].group
        values: dict[int, Any] = {}
        shares = self._call(linked, "values_for", lambda _: (key.group, key.generation, source))
        for share, _ in shares:
            for id, array in share.items():
                values[id] = values[id] + array if id in values else array
        return values, shares[0][1]

    def _linked(self, key: ServerKey) -> list[ServerKey]:
        groups = self._config.topology.linked_groups(key.group)
        return [other for other in self._actors if other.group in groups and other.server == key.server]

    def _remote_clients(self, key: ServerKey) -> list[str]:
        topology, placement = self._config.topology, self._placement
        workers = [address for group in topology.worker_groups(key.group) for address in placement.workers[group]]
        linked = [placement.servers[group][key.server] for group in topology.linked_groups(key.group)]
        return [address for address in workers + linked if process(address) != process(self._address(key))]

    def put(self, groups: Iterable[int], values: ParamArrays, state: Mapping[str, ParamArrays] | None) -> None:
        """Send server groups their first values: whole params, and for a resumed run the updater's state."""
        for group in groups:
            self._put({key: self._slices(key, values, state) for key in self._actors if key.group == group})

    def _slices(self, key: ServerKey, values: ParamArrays, state: Mapping[str, ParamArrays] | None) -> ServerValues:
        values, state = group_state(key.group, values, state)
        slice_values, slice_states = sliced_values(self._config, values, state)
        ids = [slice_.id for slice_ in self._config.slices if slice_.server == key.server]
        states = None if slice_states is None else {id: slice_states[id] for id in ids}
        arrays = {id: slice_values[id] for id in ids}, states
        # A server changes the arrays that it receives, and a server in this process receives them without a copy.
        return arrays if self._config.topology.server_groups == 1 else copy.deepcopy(arrays)

    def _put(self, sent: dict[ServerKey, ServerValues]) -> None:
        self._call(sent, "put", sent.__getitem__)
        # Dask keeps the arguments of a call in a cycle; the arrays shall not wait for the garbage collector.
        for values_by_id, states_by_id in sent.values():
            values_by_id.clear()
            if states_by_id is not None:
                states_by_id.clear()

    def link(self) -> None:
        """Connect the server groups that an edge joins, so that they send each other their changes."""
        self._gather([self._connect(key) for key in self._actors] if self._config.topology.edges else [])

    def _connect(self, key: ServerKey) -> Future:
        topology = self._config.topology
        addresses = {other: self._address(other) for other in self._linked(key)}
        paths = routes(topology.edges, topology.server_groups)
        policy = lookup("sync_method", topology.sync_method)(topology, self._config.outer_average)
        arguments = (key, addresses, paths, policy, self._config.options.timeout)
        return self._submit(connect_server, key, "connect servers", *arguments)

    def _link(self, key: ServerKey, other: ServerKey) -> Future:
        arguments = (key, other, self._address(other), self._config.options.timeout)
        what = f"to group {other.group}, {generation_text(other.generation)}"
        return self._submit(link_server, key, "link server", *arguments, what=what)

    def flush(self) -> None:
        """Let server groups send each other all changes, until they have the same values."""
        previous: list[int] | None = None
        while self._config.topology.edges:
            sent = self._call(self._actors, "flush", lambda key: ())
            if sent == previous:
                break
            previous = sent

    def call(self, group: int, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all servers of a worker group at once; return the results in order."""
        return self._call(self.addresses(group), method, lambda key: arguments)

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all servers of all groups at once; return the results in order."""
        return self._call(self._actors, method, lambda key: arguments)

    def ask(self, group: int, method: str) -> list[concurrent.futures.Future[Any]]:
        """Call a method of all servers of a worker group; return futures of the results."""
        return [self._send(key, method, ()) for key in self.addresses(group)]

    def ask_all(self, method: str) -> list[concurrent.futures.Future[Any]]:
        """Call a method of all servers of all groups; return futures of the results."""
        return [self._send(key, method, ()) for key in self._actors]

    def addresses(self, group: int) -> dict[ServerKey, str]:
        """Return a worker group's servers, with the addresses of their Dask workers."""
        server_group = self._config.topology.server_group(group)
        return {key: self._address(key) for key in self._actors if key.group == server_group}

    def _call(
        self, keys: Iterable[ServerKey], method: str, arguments: Callable[[ServerKey], Sequence[Any]]
    ) -> list[Any]:
        replies: dict[ServerKey, concurrent.futures.Future[Any]] = {}
        results = []
        try:
            for key in keys:
                replies[key] = self._send(key, method, arguments(key))
            for key, reply in replies.items():
                what = f"the result of {method} from {self._describe(key)}"
                results.append(wait_for(reply, self._config.options.timeout, what, self._check_workers))
        finally:
            for reply in replies.values():
                reply.cancel()
        return results

    def _send(self, key: ServerKey, method: str, arguments: Sequence[Any]) -> concurrent.futures.Future[Any]:
        """Call a method of a server's Actor; return a future of its result."""
        with self._client.as_current():  # outside a task, an Actor sends calls through the current client
            try:
                reply = getattr(self._actors[key], method)(*arguments)
            except RuntimeError as error:  # Dask knows already that the Actor is gone
                raise WorkerLost(f"{self._describe(key)} was lost: {error}") from error

        async def wait() -> Any:
            return await reply

        return asyncio.run_coroutine_threadsafe(wait(), self._client.loop.asyncio_loop)  # type: ignore[union-attr]

    def _check_workers(self) -> None:
        check_workers(self._client, self._placement.addresses)
        self._check(0.0)

    def _submit(
        self, task: Callable[..., Any], key: ServerKey, words: str, *arguments: Any, actor: bool = False, what: str = ""
    ) -> Future:
        of = f" of group {key.group}" if self._config.topology.server_groups > 1 else ""
        name = task_key(words, self._config.run, f"server {key.server}{of}", generation_text(key.generation), what)
        return submit_to(self._client, self._address(key), task, *arguments, key=name, actor=actor)

    def _describe(self, key: ServerKey) -> str:
        return f"server {key.server} on the Dask worker {self._address(key)}"

    def _address(self, key: ServerKey) -> str:
        return self._placement.servers[key.group][key.server]

    def _gather(self, futures: Sequence[Future]) -> list[Any]:
        return gather(self._client, futures, self._placement.addresses, self._check)
