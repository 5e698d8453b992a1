"""The servers of a run, as its driver has them: made, filled with values, made known to each other, asked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distributed import Client, Future

from dsinga.cluster.placement import Placement, process
from dsinga.cluster.server_actor import ServerActor
from dsinga.cluster.server_links import connect_server
from dsinga.cluster.supervision import check_workers, gather
from dsinga.errors import RunError
from dsinga.server import routes
from dsinga.transport.interface import Reply, wait_for
from dsinga.worker.config import ServerKey, WorkerConfig
from dsinga.worker.param_slices import Arrays, slice_specs, sliced_values


class Servers:
    """The servers of all server groups."""

    def __init__(self, client: Client, config: WorkerConfig, placement: Placement):
        self._client = client
        self._config = config
        self._placement = placement
        self._actors: dict[ServerKey, Any] = {}
        self.futures: list[Future] = []

    def make(self, step: int) -> None:
        """Make them, for worker groups that begin with ``step``."""
        shape, specs, made = self._config.topology, slice_specs(self._config), []
        for group, addresses in enumerate(self._placement.servers):
            for server in range(len(addresses)):
                key = ServerKey(self._config.run, self._config.generation, group, server)
                mine = [spec for spec in specs if spec.slice.server == server]
                arguments = (
                    key, mine, self._config.updater, shape.worker_groups(group), step, shape.staleness,
                    self._config.options.timeout, self._config.options.codec(), self._has_remote_clients(key),
                    shape.groups == shape.server_groups == 1,
                )  # fmt: skip
                self.futures.append(self._submit(ServerActor, key, "server", *arguments, actor=True))
                made.append(key)
        self._actors = dict(zip(made, self._gather(self.futures), strict=True))

    def _has_remote_clients(self, key: ServerKey) -> bool:
        """Whether workers, or linked servers, of other processes call a server."""
        shape, placement = self._config.topology, self._placement
        workers = [address for group in shape.worker_groups(key.group) for address in placement.partitions[group]]
        linked = [placement.servers[group][key.server] for group in shape.linked_groups(key.group)]
        return any(process(address) != process(self._address(key)) for address in workers + linked)

    def put(self, groups: Iterable[int], values: Arrays, state: Mapping[str, Arrays] | None) -> None:
        """Give server groups the first values, of whole params, and the updater's state where a run is resumed."""
        pieces, history = sliced_values(self._config, values, state)

        def of(key: ServerKey) -> tuple[Any, ...]:
            ids = [piece.id for piece in self._config.slices if piece.server == key.server]
            mine = {id: pieces[id] for id in ids}, None if history is None else {id: history[id] for id in ids}
            # Servers take what they are given for their own, and what goes to one in this process is not copied.
            return mine if self._config.topology.server_groups == 1 else copy.deepcopy(mine)

        for group in groups:
            self._call([key for key in self._actors if key.group == group], "put", of)

    def link(self) -> None:
        """Let server groups joined by an edge send each other their changes from now on; all have the same values."""
        shape, tasks = self._config.topology, []
        if shape.edges:
            paths = routes(shape.edges, shape.server_groups)
            for key in self._actors:
                others = [key._replace(group=group) for group in shape.linked_groups(key.group)]
                actors = {other: self._actors[other] for other in others}
                arguments = (key, actors, paths, shape.sync_freq, self._config.options.timeout)
                tasks.append(self._submit(connect_server, key, "connect-server", *arguments))
        self._gather(tasks)

    def flush(self) -> None:
        """Let the server groups, whose worker groups stand still, pass on what they have to, until they agree."""
        before: list[int] | None = None
        while self._config.topology.edges:
            sent = self._call(self._actors, "flush", lambda key: ())
            if sent == before:
                break
            before = sent

    def call(self, group: int, method: str, *arguments: Any) -> list[Any]:
        """Call a method of the servers of a worker group, side by side; return their answers in order."""
        mine = self.of(group)
        return self._call(mine, method, lambda key: arguments)

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of the servers of all server groups, side by side; return their answers in order."""
        return self._call(self._actors, method, lambda key: arguments)

    def of(self, group: int) -> dict[ServerKey, Any]:
        """Return the actors of the servers of a worker group."""
        server_group = self._config.topology.server_group(group)
        return {key: actor for key, actor in self._actors.items() if key.group == server_group}

    def _call(
        self, keys: Iterable[ServerKey], method: str, arguments: Callable[[ServerKey], Sequence[Any]]
    ) -> list[Any]:
        answers: dict[ServerKey, Reply] = {}
        with self._client.as_current():  # an Actor outside a task finds its way by the current client
            for key in keys:
                try:
                    answers[key] = getattr(self._actors[key], method)(*arguments(key))
                except RuntimeError as lost:  # Dask knows already that it is gone
                    raise RunError(f"server {key.server} on {self._address(key)} was lost: {lost}") from lost
        found = []
        for key, answer in answers.items():
            what = f"{method} by server {key.server} on {self._address(key)}"
            found.append(wait_for(answer, self._config.options.timeout, what, self._look))
        return found

    def _look(self) -> None:
        """Raise RunError if a Dask worker is lost: a server may wait for what was to come from there."""
        check_workers(self._client, self._placement.addresses)

    def _submit(
        self, task: Callable[..., Any], key: ServerKey, what: str, *arguments: Any, actor: bool = False
    ) -> Future:
        of_group = f"-of-group-{key.group}" if self._config.topology.server_groups > 1 else ""
        return self._client.submit(
            task,
            *arguments,
            actor=actor,
            workers=[self._address(key)],
            allow_other_workers=False,
            pure=False,
            key=f"{what}-{key.server}{of_group}-{self._config.run}",
        )

    def _address(self, key: ServerKey) -> str:
        return self._placement.servers[key.group][key.server]

    def _gather(self, futures: Sequence[Future]) -> list[Any]:
        return gather(self._client, futures, self._placement.addresses)
