"""Keeps actors for rollouts on the Dask workers of a cluster, and replaces lost ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Client
from distributed.actor import ProxyRPC
from distributed.protocol import to_serialize

from dsinga.base.errors import RunError
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import Workers, staying_workers
from dsinga.cluster.dask.run_tasks import run_span
from dsinga.cluster.dask.supervision import ask_for_workers
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, wait_until
from dsinga.data.sendable import unsendable, why_unsendable
from dsinga.rl.agent import Agent
from dsinga.rl.environments.registered import Environment, without_registered_name
from dsinga.rl.remote.rollout_actor import ActorRollout, RolloutActor

_log = logging.getLogger(__name__)

# Seconds between two checks whether the Dask workers of actors are still there.
CHECK_SECONDS = 1.0
# Seconds after which a Dask worker without reply counts as unreachable from here.
REACH_SECONDS = 5.0
# How often in succession an actor is replaced before it has returned a rollout.
MOST_REPLACEMENTS = 5

Call = concurrent.futures.Future[Any]


class ActorPool:
    """Starts actors on the Dask workers of a cluster, calls them, and replaces lost ones.

    A new actor continues from the last rollout of a lost one, and computes the lost rollout.

    Args:
        environment: as for :func:`dsinga.rl.environments.registered.make_environments`.
        environments: environments of each actor.
        first: the number of the first actor, if other learners of the run have actors.

    Raises:
        UserError: the agent or the environment cannot be sent to other processes.

    Attributes:
        replaced: how many actors were replaced so far.
    """

    def __init__(
        self,
        client: Client,
        agent: Agent,
        environment: Environment,
        *,
        actors: int,
        environments: int,
        seed: int = 0,
        first: int = 0,
    ):
        self._client, self._seed, self._first = client, seed, first
        self._arguments = agent, without_registered_name(environment), environments
        for name, value in zip(("agent", "environment"), self._arguments, strict=False):
            if why := why_unsendable(value):
                raise unsendable(f"the {name}", why, instead="")
        self._name = f"dsinga-actor-{uuid.uuid4().hex[:8]}"
        self._states: dict[int, Any] = {}
        self._serials = itertools.count()
        self._seconds = read_setting("timeout")
        self._workers = self._present_workers()
        self._next_check = time.monotonic() + CHECK_SECONDS
        self._is_closed = False
        # By number: the address of the Dask worker, the actor, and its future, without which Dask lets it go.
        self._actors: dict[int, tuple[str, Any, Any]] = {}
        self._is_direct: dict[str, bool] = {}  # by the address of a Dask worker, whether it can be reached from here
        self._calls: set[Call] = set()  # pending calls
        self.replaced = 0
        self.count = actors

    def start(self, number: int, method: str, *arguments: Any) -> Call:
        """Call an actor's method; return a future of its result, which raises RunError on failure."""
        coroutine = self._call(number, method, arguments)
        call = asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)  # type: ignore[union-attr]
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def states(self) -> dict[str, Any]:
        """Return the state of each actor's environments after its last rollout, by number as text."""
        return {str(number): state for number, state in dict(self._states).items()}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Let all actors continue from environment states, as returned by :meth:`states`."""
        self._states = {int(number): state for number, state in states.items()}
        self._actors.clear()

    def close(self) -> None:
        """Cancel the pending calls, and release the actors."""
        self._is_closed = True
        for call in tuple(self._calls):  # else they would replace their actors when the cluster is closed
            call.cancel()
        self._actors.clear()

    async def _call(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Return the result of an actor's method, called again on a new actor if a Dask worker is lost."""
        for _ in range(MOST_REPLACEMENTS + 1):
            address = ""
            try:
                if number not in self._actors:
                    self._actors[number] = await self._create(number)
                address, actor, _ = self._actors[number]
                answer = self._execute(address, actor.key, method, arguments)
                result = await self._wait(answer, [address], f"the {method} of actor {number}")
                if isinstance(result, ActorRollout):
                    self._states[number] = result.state
                return result
            except _ActorLost as loss:
                _log.warning("actor %d was lost with the Dask worker %s; it starts again elsewhere", number, loss)
                self._actors.pop(number, None)
                self.replaced += 1
        raise RunError(f"actor {number} was lost {MOST_REPLACEMENTS + 1} times in succession; look at the Dask workers")

    async def _create(self, number: int) -> tuple[str, Any, Any]:
        """Create an actor on a Dask worker; return its address, the actor and its future."""
        address = await self._choose(number)
        with run_span():
            future = self._client.submit(
                RolloutActor, self._first + number, *self._arguments, self._seed, self._states.get(number), actor=True,
                workers=[address], pure=False, key=f"{self._name}-{number}-{next(self._serials)}",
            )  # fmt: skip
        actor = await self._wait(future._result(), [address], f"actor {number}")
        if address not in self._is_direct:
            self._is_direct[address] = await self._reaches(address)
        return address, actor, future

    async def _reaches(self, address: str) -> bool:
        """Whether this process can connect to a Dask worker; otherwise calls go through the scheduler."""
        try:
            await asyncio.wait_for(self._client.rpc(address).identity(), REACH_SECONDS)
        except OSError:  # and TimeoutError
            return False
        return True

    async def _execute(self, address: str, key: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of an actor directly on its Dask worker; return the result.

        Calls of a Dask Actor outside of tasks go through the scheduler, by default with one thread.
        """
        rpc = self._client.rpc(address) if self._is_direct[address] else ProxyRPC(self._client.scheduler, address)
        packed = [to_serialize(argument) for argument in arguments]
        answer = await rpc.actor_execute(actor=key, function=method, args=packed, kwargs={})
        if answer["status"] != "OK":
            raise answer["exception"]
        return answer["result"]

    async def _choose(self, number: int) -> str:
        """Return a Dask worker's address for a new actor, to spread actors evenly; wait if there is none."""
        failure = RunError(f"waited {self._seconds:g} s for a Dask worker for actor {number}; there is none")

        def find(_: float) -> Workers | StillWaiting:
            if self._is_closed:  # then nobody awaits this thread
                raise failure
            sentence = f"there is no Dask worker for actor {number}; waiting for {self._seconds:g} s at most"
            return self._present_workers() or StillWaiting(sentence, failure)

        self._workers = await asyncio.to_thread(wait_until, find, self._seconds, Announcements(_log.warning))
        addresses = list(self._workers)
        loads = dict.fromkeys(addresses, 0)
        for address, *_ in self._actors.values():
            loads[address] = loads.get(address, 0) + 1
        start = (self._first + number) % len(addresses)
        rotated = addresses[start:] + addresses[:start]
        return min(rotated, key=lambda address: loads[address])

    async def _wait(self, awaitable: Any, addresses: Iterable[str], what: str) -> Any:
        """Wait for a reply of an actor or of Dask, and return it.

        Raises _ActorLost if one of the Dask workers is lost, RunError on timeout.
        """
        task = asyncio.ensure_future(awaitable)
        deadline = time.monotonic() + self._seconds
        try:
            while not (await asyncio.wait([task], timeout=CHECK_SECONDS))[0]:
                await self._check_workers()
                for address in addresses:
                    if address not in self._workers:
                        raise _ActorLost(address)
                if time.monotonic() > deadline:
                    raise RunError(f"waited {self._seconds:g} s for {what} from {', '.join(addresses)}")
            return task.result()
        except asyncio.CancelledError as error:
            if not task.cancelled():  # the loop lets go of the call
                raise
            raise _ActorLost(*addresses) from error  # Dask has cancelled the actor
        except (OSError, concurrent.futures.CancelledError) as error:
            raise _ActorLost(*addresses) from error
        except RuntimeError as error:  # of Dask, where the actor is lost before it is here
            if isinstance(error, RunError) or "Actor was lost" not in str(error):
                raise
            raise _ActorLost(*addresses) from error
        finally:
            task.cancel()

    async def _check_workers(self) -> None:
        """Update the list of present Dask workers, at most once in CHECK_SECONDS."""
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + CHECK_SECONDS
            self._workers = await asyncio.to_thread(self._present_workers)

    def _present_workers(self) -> Workers:
        workers, silent = ask_for_workers(self._client)
        return staying_workers({address: info for address, info in workers.items() if address not in silent})


class _ActorLost(Exception):
    """Raised if an actor's Dask worker is lost; the argument is its address."""
