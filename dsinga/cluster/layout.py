"""Making a job ready for a cluster: stores opened, nets built, places given. What can be refused is refused here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dask.config
import dask.utils
from distributed import Client

from dsinga.cluster.feed import Feed, open_feed
from dsinga.cluster.placement import Placement, place, processes, workers_at_hand
from dsinga.cluster.session import new_run
from dsinga.cluster.setup import Setup
from dsinga.cluster.topology import Topology, topology
from dsinga.cluster.travel import check_stores, check_travels
from dsinga.errors import UserError
from dsinga.job import Job, Phase, check, training_phases
from dsinga.net import NeuralNet, create_net
from dsinga.net.partitioned import ParamPart, PartitionedNet, Place
from dsinga.server import slice_for_servers
from dsinga.training import Updater, algorithm, create_updater


@dataclass(frozen=True)
class Layout:
    """A job made ready for a cluster: everything that can be refused has been checked."""

    job: Job
    topology: Topology
    placement: Placement
    setup: Setup
    updater: Updater

    @property
    def net(self) -> NeuralNet:
        """The training net."""
        return self.setup.nets[Phase.kTrain].whole


def lay_out(job: Job, client: Client, roots: Sequence[str] = ()) -> Layout:
    """Check a job, open its stores, build its nets, and place it on the cluster.

    Raises UserError, before anything runs, for whatever is wrong with the job, the stores or the size of the cluster.
    """
    check(job)
    at_hand = workers_at_hand(client)
    wanted = topology(job, len(at_hand), processes(at_hand))
    placement = place(wanted, at_hand)
    feeds = {phase: open_feed(job, phase, wanted.workers, roots) for phase in training_phases(job)}
    nets = {phase: create_net(job.neuralnet, phase, feed.infos) for phase, feed in feeds.items()}
    _same_params(nets)
    cut = _partitioned(nets, feeds)
    parts = shared_parts(cut)
    sizes = {name: math.prod(part.shape) for name, part in parts.items() if not part.gathered}
    updater = create_updater(job.updater)
    setup = Setup(
        run=new_run(),
        generation=0,
        seed=job.seed,
        topology=wanted,
        nets=cut,
        parts=parts,
        feeds=feeds,
        algorithm=algorithm(job.train_one_batch),
        updater=updater,
        slices=slice_for_servers(sizes, wanted.servers, wanted.slicing),
        timeout=dask.utils.parse_timedelta(dask.config.get("dsinga.timeout", "5 minutes")),
    )
    others = {"the updater": updater, "the learning rate's schedule": updater.rate, "the algorithm": setup.algorithm}
    check_travels(client, placement.addresses, nets.values(), others)
    check_stores(client, placement.addresses, feeds.values())
    return Layout(job, wanted, placement, setup, updater)


def shared_parts(nets: Mapping[Phase, PartitionedNet]) -> dict[str, ParamPart]:
    """Return the param parts of all phases, by name, the training net's first.

    Their users are all workers that have them in the net of any phase. One that only tests with a part must take part
    in its exchange too, or its value would change while it reads.
    """
    users: dict[str, set[int]] = {}
    for net in nets.values():
        for location, local in enumerate(net.locals):
            for name in local.params:
                users.setdefault(name, set()).add(location)
    train = nets[Phase.kTrain].parts
    return {name: part._replace(users=tuple(sorted(users[name] | {*part.users}))) for name, part in train.items()}


def build_net(job: Job, phase: Phase, roots: Sequence[str] = ()) -> NeuralNet:
    """Return the net of a phase as one worker has it. Raises UserError for what is wrong with the job or its stores."""
    check(job, [phase])
    return create_net(job.neuralnet, phase, open_feed(job, phase, 1, roots).infos)


def _same_params(nets: Mapping[Phase, NeuralNet]) -> None:
    train = nets[Phase.kTrain].params
    for phase, net in nets.items():
        for name, param in net.params.items():
            if name not in train or train[name].shape != param.shape:
                raise UserError(
                    f"param {name!r} of the {phase.name} net has no counterpart of shape {param.shape} in the "
                    "training net; nets of all phases share their params by name"
                )


def _partitioned(nets: Mapping[Phase, NeuralNet], feeds: Mapping[Phase, Feed]) -> dict[Phase, PartitionedNet]:
    """Return the nets, each cut over the workers of a group by rows."""
    cut = {}
    for phase, net in nets.items():
        workers = range(len(feeds[phase].parts))
        parts = {name: ParamPart(name, name, param.shape, tuple(workers)) for name, param in net.params.items()}
        places = tuple(Place(0, node.layer.name) for node in net.nodes)
        cut[phase] = PartitionedNet(net, {}, net.nodes, places, tuple(net for _ in workers), parts)
    return cut
