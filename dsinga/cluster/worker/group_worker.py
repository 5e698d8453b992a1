"""Runs one worker of a worker group: reads batches, computes its part of the net, exchanges with servers."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dsinga.base import buffers
from dsinga.base.errors import RunError
from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.cluster.server import Slice
from dsinga.cluster.server.update_executors import thread_updates
from dsinga.cluster.transport.endpoints import OpenConnection, connect
from dsinga.cluster.transport.interface import Transport
from dsinga.cluster.worker.block_team import BlockTeam, Read, read_blocks
from dsinga.cluster.worker.config import ReplicaState, RoundReport, ServerKey, WorkerConfig, WorkerKey
from dsinga.cluster.worker.exchange import COLLECTIVES_SERVER, Exchange, move_local_slices, param_homes
from dsinga.cluster.worker.exchange_options import Meter
from dsinga.cluster.worker.global_clipping import global_clipping
from dsinga.cluster.worker.mailbox import GroupPeers
from dsinga.cluster.worker.server_client import ServerClient, WorkerId, gradient_memory
from dsinga.cutting.cluster_topology import group_seed
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.data import AlgorithmRecords
from dsinga.job import Compression, Phase, PullTime
from dsinga.layers import Context, Layer, Records, Rows
from dsinga.layers.interface.context import PassObserver, Peers
from dsinga.net import NeuralNet, Param
from dsinga.net.dataflow import row_share
from dsinga.ops import Array, Processor
from dsinga.passes.captured_passes import passes_of
from dsinga.passes.predictor import EvaluationPass, evaluate, forward_in_order
from dsinga.passes.replayed import replayed
from dsinga.passes.round import BegunStep, Round, Timing, send_ahead
from dsinga.passes.training_step import TrainingStep
from dsinga.reading.batch_reader import BatchReader, WorkerBatches
from dsinga.reading.prefetch import Prefetch
from dsinga.training import Metrics, forward
from dsinga.training.local_updater import LocalUpdater


class GroupWorker:
    """A worker of a worker group, which trains one part of the net. For one thread at a time.

    Methods that compute are called in ``thread``, because kernels belong to a thread. It may be a team of ``blocks``
    workers, from its own number on.
    """

    def __init__(
        self, key: WorkerKey, config: WorkerConfig, servers: Mapping[ServerKey, OpenConnection | None],
        processor: Processor, step: int, blocks: int = 1,
    ):  # fmt: skip
        reader = config.readers[Phase.kTrain].of_group(key.group)
        if reader is not config.readers[Phase.kTrain]:  # a copy would not be the one that the process shares
            config = replace(config, readers={**config.readers, Phase.kTrain: reader})
        self._key, self._blocks = key, range(key.worker, key.worker + blocks)
        self._team: BlockTeam | None = None
        self._config = config
        self._processor = processor
        self._step = step
        self._ops = processor.ops()
        self._on_device = self._ops.device_count() > 0
        self._ops.enter()
        self._prefetch: Prefetch | None = None
        self._data_seconds = 0.0  # of waiting for records in this iteration
        self._started = self._updated = 0.0  # when it began, and the seconds of updates in this thread until then
        self._closed = False
        self._regional_readers: dict[tuple[int, int], BatchReader] = {}  # by the id of the config's reader, and worker
        self._meter = Meter()
        self.thread = SerialExecutor(f"dsinga {key}")
        self.on_abort: list[Callable[[str], None]] = []  # called with the reason when the run ends
        self.peers = GroupPeers(config.options.timeout, self._meter)
        nets = [net.locals[block] for net in config.nets.values() for block in self._blocks]
        shapes = {name: param.shape for net in nets for name, param in net.params.items()}
        self._names = tuple(shapes)
        replicated = {name: config.params[name] for name in shapes if name in config.replicated}
        self._replicated = LocalUpdater(config.updater, replicated, self._ops) if replicated else None
        slices = [slice_ for slice_ in config.slices if slice_.param in shapes]
        self._transports = _connect(servers, slices)
        topology = config.topology
        worker = WorkerId(*key[1:4], topology.workers, blocks, topology.threads is not None)
        clients = {
            server: ServerClient(transport, worker, processor.device) for server, transport in self._transports.items()
        }
        self._gradient_memory: dict[int, list[np.ndarray]] = {}
        if not self._on_device and config.options.compression is Compression.kNone:
            self._gradient_memory = gradient_memory(config, self._transports, clients, slices, shapes)
        self._create_exchange(clients, slices, shapes, replicated)

    def _create_exchange(
        self,
        clients: Mapping[int, ServerClient],
        slices: Sequence[Slice],
        shapes: Mapping[str, tuple[int, ...]],
        replicated: Mapping[str, Param],
    ) -> None:
        """Create the exchange with the servers, and the training step, captured if kernels support it."""
        config = self._config
        names = [name for name in shapes if not config.params[name].trainable]
        shares = {block: self._shares(block, names) for block in self._blocks}
        lasting = shares[self._key.worker]
        is_shared = bool(clients) and all(client.shares_gpu() for client in clients.values())
        homes = param_homes(shapes, slices, clients, lasting, self._replicated, self._ops if is_shared else None)
        move_local_slices(homes, clients)
        inner = Meter() if self._on_device else self._meter
        clipping = global_clipping(config, self._blocks)
        self._exchange = Exchange(homes, clients, config.options, inner, self._replicated, clipping)
        self.exchange = self._exchange
        micro_batches = config.readers[Phase.kTrain].micro_batches
        net, capture = self.net(Phase.kTrain), self._ops.capture()
        is_team = len(self._blocks) > 1  # whose gradients, of a net not small, leave during the pass, in less memory
        is_replayed = capture is None and (net.is_small if is_team else not net.bridged)
        passes = passes_of(self._ops, "training passes") if is_replayed else None
        compute = replayed(config.algorithm, passes, copies=True)
        if is_team:
            self._team = BlockTeam(
                self._blocks, config, self._exchange, self._ops, self._processor, shares, self._gradient_memory, passes
            )
            compute = self._team.backward
        self._training_step = TrainingStep(compute, net, micro_batches, config.skip_bad_batches)
        self._captured = None
        if capture is None:
            return
        local = shapes.keys() - {slice_.param for slice_ in config.slices}
        self.exchange = capture.exchange(
            self._exchange, local=local, replicated=replicated, meter=self._meter, inner=inner,
            ahead=config.options.pull is PullTime.kAtOnce, is_shared=is_shared,
        )  # fmt: skip
        self._captured = capture.iterations(
            self._training_step, config.updater, self.exchange, self.exchange, len(local) == len(shapes)
        )

    def _shares(self, worker: int, lasting: Iterable[str]) -> dict[str, float]:
        """Return a worker's share of each param that is state, not trained: its share of the rows."""
        shares = dict.fromkeys(lasting, 0.0)
        for node in self._config.nets[Phase.kTrain].locals[worker].nodes:
            share = row_share(node.layer, node.rows or self._config.readers[Phase.kTrain].parts[worker])
            shares.update((name, share) for name in node.params if name in shares)
        return shares

    def train(self, start: int, stop: int) -> RoundReport:
        """Do the iterations ``start`` to ``stop`` - 1; return their metrics and timings."""
        report = RoundReport([], [], stop, skipped := [], len(self._blocks))

        def add(begun: BegunStep, metrics: Metrics | None, timing: Timing) -> None:
            report.metrics.append(metrics or {})
            report.timings.append(timing)
            if metrics is None:
                skipped.append(begun.step)

        Round(self._begin, self._launch, self._captured, self._compute, add).run(start, stop)
        return report

    def iterate(self, step: int, peers: Peers, observer: PassObserver | None = None) -> tuple[Metrics | None, Timing]:
        """Run iteration ``step``; return its metrics (None if its batch was skipped) and its timing.

        With an ``observer`` of passes, all params are awaited first.
        """
        return self._compute(self._begin(step), peers, observer)

    def _begin(self, step: int) -> BegunStep:
        self._started = time.perf_counter()
        if step != self._step:
            raise RunError(f"{self._key} is at step {self._step} and cannot run step {step}")
        self._ops.set_threads(self._processor.threads)
        self._ops.enter()
        self._data_seconds = 0.0
        records = self._next_records(step)
        self._meter.start()
        self._updated = thread_updates.seconds
        self.exchange.begin(step)
        return BegunStep(step, records, self._data_seconds)

    def _launch(self, begun: BegunStep) -> bool:
        assert self._captured is not None
        if not self._captured.launch(begun.records, self._whole_context(begun)):
            return False
        self._step = begun.step + 1
        return True

    def _compute(
        self, begun: BegunStep, peers: Peers | None = None, observer: PassObserver | None = None
    ) -> tuple[Metrics | None, Timing]:
        """Compute a step that has begun, or was launched in vain; return its metrics and its timing."""
        step = begun.step
        if self._captured is not None:
            self._captured.begin(step)
        if observer is not None:
            self._wait_for_params()
        metrics = None
        if self._captured is not None and observer is None:
            metrics = self._captured.train(begun.records, self._whole_context(begun))
        if metrics is None:
            with buffers.use_bases(self._gradient_memory):
                batches = self._micro_batches(begun.records, step, peers or self.peers, observer)
                metrics = self._training_step.run(step, self.exchange, batches, self.exchange)
        self.peers.finish()
        self._step = step + 1
        meter, updated = self._meter, thread_updates.seconds - self._updated
        total = time.perf_counter() - self._started
        return metrics, Timing(total, self._data_seconds, meter.waited, meter.crossing, meter.within, updated)

    def _next_records(self, step: int) -> dict[str, Records]:
        started = time.perf_counter()
        if self._prefetch is None:
            reader = self._config.readers[Phase.kTrain]
            read = self._read_function(self._config.nets[Phase.kTrain], reader)
            self._prefetch = Prefetch(read, step * reader.micro_batches, reader.stop())
            if self._closed:  # close(), which another thread calls, may have come before this assignment
                self._prefetch.close()
        records = next(self._prefetch)
        self._data_seconds += time.perf_counter() - started
        return records

    def _micro_batches(
        self, records: dict[str, Records], step: int, peers: Peers, observer: PassObserver | None
    ) -> Iterator[tuple[Mapping[str, Records], Context]]:
        """Yield the records and the context of each micro-batch of a step; ``records`` are the first."""
        reader, worker = self._config.readers[Phase.kTrain], self._key.worker
        for number in range(reader.micro_batches):
            iteration = f"step {step}"
            if number:
                self.peers.finish()
                records = self._next_records(step)
            if reader.micro_batches > 1:
                iteration = f"micro-batch {number} of {iteration}"
            self.peers.begin(iteration)
            ctx = self._context(Phase.kTrain, reader.rows(worker, number), step, iteration, peers)
            ctx = replace(ctx, observer=observer, micro_batch=reader.micro_batch(number))
            yield records, ctx

    def _whole_context(self, begun: BegunStep) -> Context:
        rows = self._config.readers[Phase.kTrain].rows(self._key.worker, 0)
        return self._context(Phase.kTrain, rows, begun.step, f"step {begun.step}", self.peers)

    def _wait_for_params(self) -> None:
        started = time.perf_counter()
        self.exchange.wait_all()
        self._meter.waited += time.perf_counter() - started

    def evaluate(
        self, phase: Phase, batches: int, version: int, params: Mapping[str, np.ndarray] | None = None
    ) -> list[Metrics]:
        """Return this worker's metrics of each of the first ``batches`` batches of ``phase``; 0 means all records."""
        self._ops.set_threads(self._processor.threads)
        self._ops.enter()
        self.exchange.begin(version)
        first = EvaluationPass(self._config.nets[phase], self._config.readers[phase], batches)
        passes = [first] if batches else self._config.passes[phase]
        values: Mapping[str, Array] = self.exchange
        if params is not None:
            values = {name: self._ops.asarray(params[name]) for name in self._names}

        def compute(net: PartitionedNet, reader: BatchReader, number: int, records: Mapping[str, Records]) -> Metrics:
            iteration = f"batch {number} of {phase.name} at step {version}"
            self.peers.begin(iteration)
            ctx = self._context(phase, reader.parts[self._key.worker], number, iteration, self.peers)
            local, captured = net.locals[self._key.worker], self._captured if params is None else None
            metrics = None if captured is None else captured.evaluate(local, records, ctx)
            if self._team is not None:
                metrics = self._team.forward(net, reader.parts, values, records, ctx)
            elif metrics is None:
                metrics = forward(local, values, records, ctx)[1]
            self.peers.finish()
            return metrics

        return evaluate(passes, forward_in_order(self._read_function, compute))

    def set_replica(self, state: ReplicaState) -> None:
        """Set the first values of the replicated params, and the updater's state; a repeated call changes nothing."""
        if self._replicated is not None and not self._replicated.values:
            self._ops.enter()
            self._replicated.put(*state)
            if self._captured is not None:
                self._captured.clear()

    def replica_state(self) -> ReplicaState:
        """Return the replicated params that this worker is the first to use."""
        if self._replicated is None:
            return ReplicaState({}, {})
        self._ops.enter()
        self.exchange.wait_all()
        users = {name: self._config.parts[name].users for name in self._replicated.params}
        first = [name for name, at in users.items() if at[0] in self._blocks]
        return ReplicaState(self._replicated.copy_values(first), self._replicated.copy_state(first))

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate of this worker's own updates (:meth:`Updater.set_rate_factors`)."""
        self._config.updater.set_rate_factors(factors)

    @property
    def waits_for_tasks(self) -> bool:
        """Whether steps of the job's algorithm may wait for tasks of Dask."""
        return getattr(self._config.algorithm, "waits_for_tasks", False)

    def net(self, phase: Phase) -> NeuralNet:
        """Return this worker's part of a phase's net; a team's first one."""
        return self._config.nets[phase].locals[self._key.worker]

    def _read_function(self, net: PartitionedNet, reader: BatchReader) -> Read:
        """Return a function that reads this worker's records of a step, without a reference to this worker."""
        reads = {block: self._read_part(net.locals[block], reader, block) for block in self._blocks}
        return reads[self._key.worker] if self._team is None else functools.partial(read_blocks, reads)

    def _read_part(self, net: NeuralNet, reader: BatchReader, worker: int) -> Read:
        inputs = [
            node
            for node in net.nodes
            if node.layer.is_input and not isinstance(reader.stores.get(node.layer.name), AlgorithmRecords)
        ]
        rows = {node.layer.name: node.rows or reader.parts[worker] for node in inputs}
        layers = {node.layer.name: node.layer for node in inputs}
        is_cut = any(layer.region is not None for layer in layers.values())
        if is_cut:
            reader = self._regional(reader, layers.values(), worker)
        read: Read = WorkerBatches(reader, rows, self._key.group)
        if is_cut:
            read = functools.partial(_take_regions, read, layers)
        return functools.partial(send_ahead, read, layers, self._ops) if self._on_device else read

    def _regional(self, reader: BatchReader, layers: Iterable[Layer], worker: int) -> BatchReader:
        """Return a reader of a worker's points only, always the same, because it may cache records."""
        key = id(reader), worker
        if key not in self._regional_readers:
            self._regional_readers[key] = reader.in_regions(layers)
        return self._regional_readers[key]

    def _context(self, phase: Phase, rows: Rows, step: int, iteration: str, peers: Peers) -> Context:
        """Return the context in which layers compute an iteration; ``iteration`` is a unique name in the run."""
        seed = group_seed(self._config.seed, self._key.group)
        ctx = Context(self._ops, phase, rows, seed, step)
        if self._config.topology.workers == 1:
            return ctx
        self._exchange.meanwhile = deque()
        return replace(
            ctx,
            meanwhile=self._exchange.meanwhile if self._config.options.overlap and not self._on_device else None,
            all_reduce=functools.partial(_in_iteration, self.exchange.all_reduce, iteration),
            all_gather=functools.partial(_in_iteration, self.exchange.all_gather, iteration),
            peers=peers,
        )

    def abort(self, message: str) -> None:
        """End all waits, now and later, with RunError(``message``)."""
        self._exchange.abort(message)
        self.peers.mailbox.close(message)
        for end in self.on_abort:
            end(message)
        with contextlib.suppress(RunError):  # this is the second call
            self.thread.submit(self._disconnect)  # no thread uses the connections then
        self.thread.close(message)

    def _disconnect(self) -> None:
        self._exchange.disconnect()
        for transport in [*self._transports.values(), *self.peers.transports]:
            transport.close()

    def close(self) -> None:
        """Stop the threads that read ahead and, on a GPU, copy params; end connections to other hosts."""
        self._closed = True
        for transport in (*self._transports.values(), *self.peers.transports):
            if transport.crosses_host:
                transport.close()
        if self._prefetch is not None:
            self._prefetch.close()
        if self._team is not None:
            self._team.close()
        self.exchange.close()


def _connect(servers: Mapping[ServerKey, OpenConnection | None], slices: Sequence[Slice]) -> dict[int, Transport]:
    """Connect to the servers of these slices and of collectives; return transports by number."""
    needed = {COLLECTIVES_SERVER, *(slice_.server for slice_ in slices)}
    return {
        server.server: connect(server.name, connection, server.secret)
        for server, connection in servers.items()
        if server.server in needed
    }


def _take_regions(
    read: Callable[[int], dict[str, Records]], layers: Mapping[str, Layer], step: int
) -> dict[str, Records]:
    return {name: layers[name].take_region(records) for name, records in read(step).items()}


def _in_iteration(collective: Callable[[str, Array], Array], iteration: str, key: str, array: Array) -> Array:
    return collective(f"{iteration}/{key}", array)
