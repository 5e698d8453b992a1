"""``partition: auto``: chooses how each layer is cut by the cost model, for the workers of the running cluster."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial

from distributed import Client

from dsinga.cluster.dask.dask_workers import host, on_several_hosts, process
from dsinga.cluster.dask.error_frames import cleared_frames
from dsinga.cluster.dask.packed import Packed
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.run_span import run_span
from dsinga.cluster.dask.supervision import gather
from dsinga.cluster.placing.link_probe import measure_links
from dsinga.job import ClusterConf, Job, PartitionMethod, SlicingMethod
from dsinga.job.topology import Topology
from dsinga.job.topology import topology as create_topology
from dsinga.net import NeuralNet
from dsinga.net.cut import LayerCut
from dsinga.ops import Ops, get_ops
from dsinga.planner.choice import compared, needs_several_workers
from dsinga.planner.cost_model import CostModel
from dsinga.planner.link import Links
from dsinga.planner.machine import MachineModel, measure_machine
from dsinga.planner.processes import ProcessMap
from dsinga.planner.rate_store import RateStore, rates_file
from dsinga.planner.search import explicitly_cut_layers
from dsinga.settings import read_setting
from dsinga.training import Updater

_log = logging.getLogger(__name__)


def choose_cuts(
    job: Job, topology: Topology, net: NeuralNet, updater: Updater, client: Client, placement: Placement
) -> tuple[Job, Topology, dict[str, LayerCut] | None]:
    """Return a job, its topology, and the cuts of layers that the cost model finds fastest, by name.

    Where one worker is the fastest, the job is one with a single worker in each group, and the cuts are None. Layers
    with a partition_dim or a location of their own are left out. The first worker times the layers whose times its
    machine has not stored. Raises RunError where a Dask worker is lost meanwhile.
    """
    workers = placement.workers[0]
    excluded = explicitly_cut_layers(job.neuralnet)
    one_worker = not needs_several_workers(job.neuralnet)
    processes = process_map_of(placement, topology.slicing)._replace(whole=updater.conf.clips_norms)
    links = measure_links(client, workers)
    folder = read_setting("cache")
    arguments = (Packed((net, updater)), processes, links, excluded, one_worker, placement, folder)
    with run_span():
        search = client.submit(_search, *arguments, workers=[workers[0]], pure=False)
    ((cuts, description, warning),) = gather(client, [search], workers)
    if warning:
        _log.warning("partition: auto: %s", warning)
    if cuts is None:
        _log.info("partition: auto trains with one worker, which is faster than %d", len(workers))
        conf = (job.cluster or ClusterConf()).replace(nworkers_per_group=1, nservers_per_group=1)
        job = job.replace(cluster=conf, neuralnet=job.neuralnet.replace(partition=PartitionMethod.manual))
        return job, create_topology(job, 1, 1), None
    _log.info("partition: auto cuts the net over %d workers so: %s", len(workers), description)
    return job, topology, cuts


def process_map_of(placement: Placement, slicing: SlicingMethod) -> ProcessMap:
    """Return the processes of the workers and servers of the first group, for the planner."""
    workers, servers = placement.workers[0], placement.servers[0]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(map(process, [*workers, *servers])))}

    def processes(addresses: Sequence[str]) -> tuple[int, ...]:
        return tuple(numbers[process(address)] for address in addresses)

    return ProcessMap(processes(workers), processes(servers), slicing, several_hosts=on_several_hosts(workers))


def machine_of(
    net: NeuralNet, updater: Updater, ops: Ops, placement: Placement, store: RateStore, workers: int
) -> MachineModel:
    """Return a model of the first worker's machine while the first ``workers`` workers of its group compute."""
    addresses = placement.workers[0][:workers]
    on_host = [address for address in addresses if host(address) == host(addresses[0])]
    in_process = [address for address in on_host if process(address) == process(addresses[0])]
    return measure_machine(net, updater, ops, placement.threads[0][0], len(on_host), len(in_process), store)


@cleared_frames()
def _search(
    net_and_updater: Packed[tuple[NeuralNet, Updater]],
    processes: ProcessMap,
    links: Links,
    excluded: Collection[str],
    one_worker: bool,
    placement: Placement,
    folder: str | None,
) -> tuple[dict[str, LayerCut] | None, str, str]:
    """Task: return the cuts of layers by name, None for one worker, a description of them, and a warning or ""."""
    net, updater = net_and_updater.unpack()
    store = RateStore(rates_file(folder))
    cost_model = CostModel(net, partial(machine_of, net, updater, get_ops(), placement, store), links, processes.first)
    choice = compared(cost_model, len(processes.workers), excluded, one_worker)["auto"]
    store.save()
    cuts = {name: cut for name, cut in choice.cuts.items() if name not in excluded}
    return (cuts if choice.workers > 1 else None), choice.words(net), store.warning
