"""Makes a plan: predicts the cost of a job's partitionings, on this machine or an imagined cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dsinga.addons.planner.cost_model import (
    EXACT_WORKERS,
    CostModel,
    PricedCuts,
    compared,
    needs_several_workers,
    predict,
    scaled,
)
from dsinga.addons.planner.fitting import MemoryFit, NetVariants, cannot_fit, fit, fit_or_refuse, whole_job
from dsinga.addons.planner.link import (
    ENDS,
    FREE_BARRIER,
    GIGABIT,
    INSIDE,
    LOOPBACK,
    BarrierCost,
    Link,
    Links,
    measure_barrier,
)
from dsinga.addons.planner.machine import MachineModel, measure_machine
from dsinga.addons.planner.plan import Alternative, Plan
from dsinga.addons.planner.processes import ProcessMap, process_map, wire_bytes
from dsinga.addons.planner.rate_store import RateStore, rates_file
from dsinga.addons.planner.search import by_rows, explicitly_cut_layers, has_space, layers_with_whole_params
from dsinga.base.arguments import counted
from dsinga.base.errors import UserError
from dsinga.cutting.partitioning import partition
from dsinga.cutting.worker_memory import slots_and_bf16, snapshot_memory, worker_memory
from dsinga.job import AlgType, ClusterConf, Job, LayerConf, PartitionMethod, Phase, Precision
from dsinga.job.enums import CPU_PRECISIONS, PRECISIONS
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net, input_layers
from dsinga.net.neuralnet import check_memory, usable_threads
from dsinga.ops import cpu_ops
from dsinga.reading.checked_job import CheckedJob, check_job, micro_batch_size
from dsinga.reading.open_layer import augmented_info
from dsinga.training import create_updater

CURVE = (1, 2, 4, 8, 16, 32, 64, 128)  # numbers of workers


def make_plan(
    job: Job,
    cores: int,
    *,
    workers: int | None = None,
    network: Link | None = None,
    roots: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
    announce: Callable[[str], None] | None = None,
    memory: int = 0,
    limit: int | None = None,
) -> Plan:
    """Predict the times of a job's partitionings, and return them as a plan.

    ``job.cluster`` gives the numbers of servers and of workers in a process; ``workers`` defaults to the job's, else
    one a core. With a ``network``, each machine runs one process's workers. Without one, up to ``cores`` workers are
    threads of one process, and others are on machines joined by a gigabit network.
    """
    checked, conf = check_job(job, roots, [Phase.kTrain]), job.cluster
    count = workers if workers is not None else (conf.nworkers_per_group if conf else cores)
    net, fitting = _net_to_price(checked, count, memory, limit)
    job, batch = whole_job(job), net.nodes[0].layer.shape[0]
    numbers = [number for number in CURVE if number <= batch or has_space(net, number)]
    steps = _Steps(announce, 1 + len(numbers))
    create_models = partial(CostModels, job, net, cores, RateStore(rates_file(cache), steps.announce))
    models = create_models(job.precision)

    steps.begin(f"{counted(count, 'worker')}, all strategies")
    link, per_process = network or GIGABIT, conf.nworkers_per_procs if conf else cores
    barrier = models.barrier()
    links = Links(INSIDE, ENDS, link, barrier_inside=barrier, barrier_between=barrier)
    remote = _on_machines(conf, cores), per_process, links
    in_one_process = network is None and count <= cores
    layout = (_in_one_process, count, links._replace(wire=LOOPBACK)) if in_one_process else remote
    model = models.create(*layout)
    choices = _choices(job, model, count)
    alternatives = _alternatives(job, model, choices, count, fitting)
    fastest = choices["auto" if count > 1 else "one worker"]
    precisions = _seconds_by_precision(lambda precision: create_models(precision).create(*layout), fastest)

    curve = _curve(models.create(*remote), numbers, steps)
    models.store.save()
    machines = f"machines of {counted(per_process, 'worker')}, joined by {describe_link(link)}"
    return Plan(
        job.name, batch, "threads of one process" if in_one_process else machines, alternatives, machines, curve,
        snapshot_memory(net, len(create_updater(job.updater).state_slots)), models.store.warning, precisions,
        count if in_one_process else min(count, per_process), memory, limit,
    )  # fmt: skip


class _Steps:
    def __init__(self, announce: Callable[[str], None] | None, count: int):
        self._announce, self._count = announce, count
        self._number, self._subject = 0, ""

    def begin(self, subject: str) -> None:
        self._number, self._subject = self._number + 1, subject

    def announce(self, sentence: str) -> None:
        if self._announce:
            self._announce(f"step {self._number} of {self._count}, {self._subject}: {sentence}")


def _net_to_price(checked: CheckedJob, count: int, memory: int, limit: int | None) -> tuple[NeuralNet, Fitting | None]:
    """Create the net of the job's whole batches, and describe how to fit it into a memory, or None."""
    job = checked.job
    if job.train_one_batch.alg is AlgType.kCD:
        raise job.error("a plan needs a job trained by back-propagation; kCD is always cut by rows", "train_one_batch")
    if job.blocks:
        raise job.error("a plan prices a part of the batch for each worker, not blocks; leave blocks out", "blocks")
    net = plan_net(checked.with_job(whole_job(job)))
    batch = net.nodes[0].layer.shape[0]
    if count < 1 or (count > batch and not has_space(net, count)):
        raise UserError(f"a batch of {batch} can be cut over 1 to {batch} workers, not {count}")
    fitting = None
    if limit is not None or job != whole_job(job):
        fitting = Fitting(open_variants(checked), sys.maxsize if limit is None else limit)
        if count == 1:
            fit_or_refuse(fitting.variants, fitting.limit)
    if memory and limit is None:  # this machine times the whole net
        check_memory([net], 1, memory)
    return net, fitting


def _seconds_by_precision(create_model: Callable[[Precision], CostModel], choice: PricedCuts) -> dict[str, float]:
    if cpu_ops("float32").lacks_bf16():
        return {}
    models = {precision.name: create_model(precision) for precision in CPU_PRECISIONS}
    return {name: model.predict(choice.cuts, choice.workers).seconds for name, model in models.items()}


class CostModels:
    """Creates cost models of a job that share their measurements."""

    def __init__(self, job: Job, net: NeuralNet, cores: int, store: RateStore, precision: Precision):
        self.store = store
        self._net, self._updater, self._cores = net, create_updater(job.updater), cores
        self._ops = cpu_ops(PRECISIONS[precision])
        self._wire = wire_bytes(job, self._ops.precision == "bf16")

    def barrier(self) -> BarrierCost:
        """Return the cost of a barrier of workers in one process, measured once."""
        return (
            BarrierCost(*self.store.get("barrier", measure_barrier, "a barrier")) if self._cores > 1 else FREE_BARRIER
        )

    def create(
        self, processes: Callable[[int], ProcessMap], per_machine: int, links: Links, most_threads: int | None = None
    ) -> CostModel:
        """Create a cost model for up to ``per_machine`` workers, of up to ``most_threads`` threads, a machine."""
        per_machine = min(per_machine, self._cores)

        def unsliced_if_clipped(workers: int) -> ProcessMap:
            return processes(workers)._replace(whole=self._updater.needs_whole_params, wire=self._wire)

        def machine(workers: int) -> MachineModel:
            count = min(workers, per_machine)
            threads = min(self._cores // per_machine, most_threads or self._cores, usable_threads(self._net, workers))
            return measure_machine(self._net, self._updater, self._ops, threads, count, self.store)

        return CostModel(self._net, machine, links, unsliced_if_clipped)


def _in_one_process(workers: int) -> ProcessMap:
    return process_map(workers, workers, 1)


def _on_machines(conf: ClusterConf | None, cores: int) -> Callable[[int], ProcessMap]:
    def processes(workers: int) -> ProcessMap:
        if conf is None:
            placed = process_map(workers, cores, -(-workers // cores))
        else:
            servers = max(1, conf.nservers_per_group * workers // conf.nworkers_per_group)
            placed = process_map(workers, conf.nworkers_per_procs, servers, conf.slicing)
        return placed._replace(several_hosts=True)

    return processes


def _curve(model: CostModel, numbers: Sequence[int], steps: _Steps) -> list[Alternative]:
    curve: list[Alternative] = []
    for workers in numbers:
        steps.begin(counted(workers, "worker"))
        choices = {"data": predict(model, by_rows(model.net, 1), 1)} if workers == 1 else scaled(model, workers)
        curve += [_alternative(model, name, choice, workers) for name, choice in choices.items()]
    return curve


def _choices(job: Job, model: CostModel, workers: int) -> dict[str, PricedCuts]:
    if workers == 1:
        return {"one worker": predict(model, by_rows(model.net, 1), 1)}
    chooses = job.neuralnet.partition is PartitionMethod.auto
    fixed = layers_with_whole_params(model.net, create_updater(job.updater))
    fixed |= explicitly_cut_layers(job.neuralnet) if chooses else set()
    return compared(model, workers, fixed, not (chooses and needs_several_workers(job.neuralnet)))


class Fitting(NamedTuple):
    """The nets of a job to fit into the bytes of memory of each worker."""

    variants: NetVariants
    limit: int


def _alternatives(
    job: Job, model: CostModel, choices: Mapping[str, PricedCuts], workers: int, fitting: Fitting | None = None
) -> list[Alternative]:
    """List the alternatives for a number of workers, cheapest first; "auto" before its equals.

    With ``fitting``, they fit into the memory, and "auto" is the cheapest.
    """
    alternatives = [
        _with_memory(job, _alternative(model, name, choice, 1 if name == "one worker" else workers), model.net, choice)
        for name, choice in choices.items()
    ]
    if fitting is not None:
        alternatives = _that_fit(alternatives, choices, fitting, workers)
    return sorted(alternatives, key=lambda row: (row.prediction.seconds, row.name != "auto"))


def _alternative(model: CostModel, name: str, choice: PricedCuts, workers: int) -> Alternative:
    text, efficiency = choice.text(model.net), model.efficiency(choice.prediction, workers)
    return Alternative(name, workers, text, choice.prediction, efficiency)


def _with_memory(job: Job, alternative: Alternative, net: NeuralNet, choice: PricedCuts) -> Alternative:
    if choice.workers > EXACT_WORKERS:
        return alternative
    slots, bf16 = slots_and_bf16(job)
    locals_ = partition(net, choice.workers, cuts=choice.cuts).locals
    memories = [worker_memory(local, slots, choice.workers, bf16=bf16) for local in locals_]
    return alternative._replace(memory=max(memories, key=lambda memory: memory.peak))


def _that_fit(
    alternatives: Sequence[Alternative], choices: Mapping[str, PricedCuts], fitting: Fitting, workers: int
) -> list[Alternative]:
    found = {}
    for row in alternatives:
        choice = choices[row.name]
        found[row.name] = fit(fitting.variants, fitting.limit, choice.workers, choice.cuts)
    if not any(fits for _, fits in found.values()):
        name, (least, _) = min(found.items(), key=lambda item: item[1][0].memory.peak)
        raise cannot_fit(least, fitting.limit, choices[name].workers)
    rows = {row.name: _fitted(row, found[row.name][0], fitting) for row in alternatives if found[row.name][1]}
    cheapest = min(rows.values(), key=lambda row: row.prediction.seconds)
    if "auto" in choices:
        rows["auto"] = cheapest._replace(name="auto")
    return list(rows.values())


def _fitted(row: Alternative, found: MemoryFit, fitting: Fitting) -> Alternative:
    price = found.price(max(1, fitting.variants.batchsize // row.workers))
    text = f"{row.text}; {found.text()}" if found.text() else row.text
    return row._replace(prediction=row.prediction.computing(price), memory=found.memory, text=text, fit=found)


def open_variants(checked: CheckedJob) -> NetVariants:
    """Create the nets of a job; without its stores, in the job's shapes and without memory of records."""
    job = checked.job
    try:
        return NetVariants.of(job, checked.reader(Phase.kTrain))
    except UserError:
        return NetVariants(job.neuralnet, plan_infos(checked), {}, 0, *slots_and_bf16(job))


def plan_net(checked: CheckedJob) -> NeuralNet:
    """Create the training net; without its stores, in the job's shapes."""
    return create_net(checked.job.neuralnet, Phase.kTrain, plan_infos(checked))


def plan_infos(checked: CheckedJob) -> Mapping[str, RecordInfo]:
    """Describe the training records; without their stores, in the job's shapes."""
    job = checked.job
    try:
        return checked.reader(Phase.kTrain).infos
    except UserError as error:
        layers = input_layers(job.neuralnet, Phase.kTrain)
        if any(layer.store_conf is None or not layer.store_conf.shape for layer in layers):
            error.add_note("without its store, a plan needs the shape of the records in store_conf")
            raise
        return {layer.name: _info(layer, job) for layer in layers}


def _info(layer: LayerConf, job: Job) -> RecordInfo:
    conf = layer.store_conf
    assert conf is not None
    size = micro_batch_size(layer, sum(conf.batchsize), job.micro_batches)
    info = RecordInfo(tuple(conf.shape), size, micro_batches=job.micro_batches)
    return augmented_info(layer, info, np.uint8, job.seed, Phase.kTest)[0]


def describe_link(link: Link) -> str:
    """Describe a network as text, with latency and bandwidth."""
    return f"{8 * link.bandwidth / 1e9:g} Gbit/s, {1e3 * link.latency:g} ms"
