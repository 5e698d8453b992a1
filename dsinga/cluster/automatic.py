"""``partition: auto``: the cost model says how the layers are cut, for the cluster that is there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial

import dask.config
from distributed import Client

from dsinga.cluster.link_probe import measure_links
from dsinga.cluster.placement import Placement, host, process
from dsinga.cluster.preflight import check_travels
from dsinga.cluster.supervision import gather
from dsinga.job import NetConf, SlicingMethod
from dsinga.net import NeuralNet
from dsinga.ops import Ops, get_ops
from dsinga.planner.forecast import Forecast
from dsinga.planner.hosts import Hosts
from dsinga.planner.link import Links
from dsinga.planner.machine import Machine, measured_machine
from dsinga.planner.search import Search, own_layers
from dsinga.planner.store import RateStore, rates_file
from dsinga.planner.strategies import in_words
from dsinga.training import Updater

_log = logging.getLogger(__name__)


def automatic_cuts(
    conf: NetConf, net: NeuralNet, updater: Updater, client: Client, placement: Placement, slicing: SlicingMethod
) -> dict[str, int]:
    """Return the dimension that each layer is to be cut on, by name, as the cost model would have it.

    Layers that say their own partition_dim or location are left out. Layers are timed on the first worker, unless its
    machine knows them. Raises UserError where the job's own classes do not reach the workers, RunError where a worker
    is lost meanwhile.
    """
    workers = placement.partitions[0]
    check_travels(client, workers, [net], {"the updater": updater})
    fixed = own_layers(conf)
    hosts = hosts_of(placement, slicing)._replace(whole=bool(updater.conf.clip_norm))
    links = measure_links(client, workers)
    folder = dask.config.get("dsinga.cache", None)
    arguments = (net, hosts, updater, links, fixed, placement, folder)
    chosen = client.submit(_choose, *arguments, workers=[workers[0]], pure=False)
    ((requested_cuts, words),) = gather(client, [chosen], workers)
    _log.info("partition: auto cuts the net over %d workers so: %s", len(workers), words)
    return requested_cuts


def hosts_of(placement: Placement, slicing: SlicingMethod) -> Hosts:
    """Return where the workers and servers of the first group live, for the planner."""
    workers, servers = placement.partitions[0], placement.servers[0]
    numbers = {home: number for number, home in enumerate(dict.fromkeys(map(process, [*workers, *servers])))}

    def homes(addresses: Sequence[str]) -> tuple[int, ...]:
        return tuple(numbers[process(address)] for address in addresses)

    return Hosts(homes(workers), homes(servers), slicing)


def machine_of(
    net: NeuralNet, updater: Updater, ops: Ops, placement: Placement, store: RateStore, workers: int
) -> Machine:
    """Return the machine of the first worker, as it is when the first ``workers`` of its group compute."""
    addresses = placement.partitions[0][:workers]
    crowd = [address for address in addresses if host(address) == host(addresses[0])]
    tenants = [address for address in crowd if process(address) == process(addresses[0])]
    return measured_machine(net, updater, ops, placement.threads[0][0], len(crowd), len(tenants), store)


def _choose(
    net: NeuralNet,
    hosts: Hosts,
    updater: Updater,
    links: Links,
    fixed: Collection[str],
    placement: Placement,
    folder: str | None,
) -> tuple[dict[str, int], str]:
    """Task: return the dimensions by layer, and the cuts in words."""
    store = RateStore(rates_file(folder))
    forecast = Forecast(net, partial(machine_of, net, updater, get_ops(), placement, store), links, hosts.first)
    cuts = Search(net, forecast.price, fixed).cuts(len(hosts.workers))
    store.save()
    return {name: cut.dim for name, cut in cuts.items() if name not in fixed}, in_words(net, cuts)
