"""Checks before a run that its Dask workers have all that it needs: dsinga, kernels, the user's code, the records."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import signal
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from distributed import Client, Nanny
from distributed.protocol.pickle import dumps

from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code
from dsinga.base.version import __version__
from dsinga.cluster.dask.dask_workers import available_workers, process
from dsinga.cluster.dask.worker_calls import call_on_workers, wait_for
from dsinga.cluster.preflight import worker_report
from dsinga.cluster.preflight.worker_lacks import (
    PAUSED,
    SCHEDULER,
    describe_lacks,
    describe_mixed_bf16,
    find_lacks,
    warn_of_differences,
    warn_without_bf16,
)
from dsinga.data.sendable import check_sendable, pickling_not_logged, unsendable, why_unsendable
from dsinga.job import Precision
from dsinga.loop.local_run import check_first_block
from dsinga.net import NeuralNet
from dsinga.reading.batch_reader import BatchReader

# A Dask worker evaluates this: it executes the source of worker_report, then calls the function ``report``.
CALL_REPORT = "(exec(source, scope), scope['report'](**arguments))[1]"


def check_workers_ready(
    client: Client,
    addresses: Iterable[str],
    nets: Iterable[NeuralNet] = (),
    objects: Mapping[str, Any] | None = None,
    readers: Iterable[BatchReader] = (),
    precision: Precision = Precision.kFloat32,
    has_bf16: bool | None = None,
) -> bool:
    """Raise UserError unless the Dask workers have this dsinga, kernels and the user's code, and read the records.

    ``objects`` may be of a user's class, by their names in errors. kBF16 is refused if only some workers have it;
    ``has_bf16`` says whether those that already compute have it, None if there are none.

    Dask would end a worker that cannot load a task's argument, so the check comes before any task. The scheduler needs
    dsinga, too, to load the functions of tasks.

    Returns whether they have bfloat16.
    """
    addresses, readers = list(addresses), list(readers)
    user_objects = _user_objects(nets, objects or {})
    if any(process(address) != "inproc" for address in addresses):
        check_sendable(store for reader in readers for store in reader.shared_stores.values())
        for name, value in (objects or {}).items():  # such as the algorithm that has the user's environment
            if name not in user_objects and (why := why_unsendable(value)):
                raise unsendable(name, why, instead="")
    pickled = {name: _pickled(name, value) for name, value in user_objects.items()}
    workers = {process(address): address for address in sorted(addresses, reverse=True)}
    stores = {
        store.location: store for reader in readers for store in reader.shared_stores.values() if store.from_files
    }
    facts = {location: (dumps(store), worker_report.describe(store)) for location, store in stores.items()}
    reports = _ask(client, sorted(workers.values()), pickled, facts)
    for location, store in stores.items():
        if any(report["stores"].get(location) for report in reports.values()):
            _check_here(store)
    lacks = {address: list(find_lacks(report, user_objects)) for address, report in reports.items()}
    for address, info in available_workers(client).items():
        if address in workers.values() and info["status"] == "paused":
            lacks[address].append(PAUSED)
    if message := describe_lacks(lacks):
        raise UserError(message)
    if precision is Precision.kBF16:
        if message := describe_mixed_bf16(reports, has_bf16):
            raise UserError(message)
        warn_without_bf16(reports)
    warn_of_differences(reports)
    return not any(report["no_bf16"] for report in reports.values())


def _check_here(store: Any) -> None:
    """Raise UserError if a store is damaged, so that no process can read it."""
    try:
        reopened = copy.copy(store)
    except UserError:  # the store has gone meanwhile
        return
    check_first_block(reopened)


def _ask(
    client: Client, addresses: list[str], objects: Mapping[str, bytes], stores: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the reports of Dask workers on what they have, and of the scheduler if it is a separate process."""
    of_workers = {"objects": objects, "stores": stores, "computes": True}
    of_scheduler = {"objects": {}, "stores": {}, "computes": False}

    async def ask() -> dict[str, dict[str, Any]]:
        if children := _child_processes(client, addresses):
            await call_on_workers(client, children, _ignore_interrupts)
        coroutines = [call_on_workers(client, addresses, *_call(**of_workers))]
        if not client.scheduler.address.startswith("inproc://"):  # type: ignore[union-attr]
            coroutines.append(_call_on_scheduler(client, *_call(**of_scheduler)))
        return {address: report for reports in await asyncio.gather(*coroutines) for address, report in reports.items()}

    return wait_for(client, ask(), addresses, "the reports of Dask workers")


def _child_processes(client: Client, addresses: Collection[str]) -> list[str]:
    cluster_workers = getattr(getattr(client, "cluster", None), "workers", None) or {}
    nannies = [worker for worker in cluster_workers.values() if isinstance(worker, Nanny)]
    return [nanny.worker_address for nanny in nannies if nanny.worker_address in addresses]


def _ignore_interrupts() -> None:
    """Ignore SIGINT, which a terminal also sends to child processes: the run ends them."""
    with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(**arguments: Any) -> tuple[Any, ...]:
    scope = {
        "source": inspect.getsource(worker_report), "scope": {}, "arguments": {"version": __version__, **arguments},
    }  # fmt: skip
    return asyncio.to_thread, eval, CALL_REPORT, scope


async def _call_on_scheduler(client: Client, *call: Any) -> dict[str, Any]:
    return {SCHEDULER: await client.run_on_scheduler(*call, asynchronous=True)}


def _user_objects(nets: Iterable[NeuralNet], objects: Mapping[str, Any]) -> dict[str, Any]:
    nodes = [node.layer for net in nets for node in net.nodes]
    layers = {f"layer {layer.name!r}": getattr(layer, "user_code", layer) for layer in nodes}
    return {name: value for name, value in {**objects, **layers}.items() if is_user_code(value)}


def _pickled(name: str, value: Any) -> bytes:
    try:
        with pickling_not_logged():
            return dumps(value)
    except Exception as error:
        raise unsendable(name, f"{type(error).__name__}: {error}", instead="") from error
