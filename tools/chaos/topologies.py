"""The jobs of the campaign: one small net with dropout, on data-parallel, hybrid and asynchronous topologies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dsinga.job import ClusterConf, Job, loads
from tests.support.small_job import JOB
from tools.faults import passes as passes  # registers the layer

# The layers in whose passes processes end: after "norm" and after "drop", so that each worker of a cut net has one.
DOOR = 'layer { name: "%s" type: kUserLayer user_type: "ChaosDoor" srclayers: "%s" chaosdoor_conf { plan: "%s" } }\n'
PLAN = "plan.json"


class Topology(NamedTuple):
    """A topology: its groups, workers and servers, and how layers are cut: fields of layers, by name."""

    cluster: ClusterConf
    cuts: Mapping[str, Mapping[str, int]] = {}

    @property
    def processes(self) -> int:
        """How many Dask workers with one thread each it takes."""
        return (self.cluster.nworker_groups or 1) * (self.cluster.nworkers_per_group or 1)

    @property
    def is_synchronous(self) -> bool:
        """Whether a run gives the same bits each time."""
        return (self.cluster.nworker_groups or 1) == 1


# "ip" by features: bridges before and after it, between all workers.
HYBRID = {"ip": {"partition_dim": 1}}
# The lower layers on one worker, the upper ones on the other: a bridge forward and one back.
LOCATIONS = {
    **{name: {"location": 0} for name in ("data", "conv", "relu", "norm", "door")},
    **{name: {"location": 1} for name in ("pool", "drop", "door2", "ip", "loss")},
}
TOPOLOGIES = {
    "data-2": Topology(ClusterConf(nworkers_per_group=2, nservers_per_group=2)),
    "data-4": Topology(ClusterConf(nworkers_per_group=4, nservers_per_group=2)),
    "hybrid-2": Topology(ClusterConf(nworkers_per_group=2, nservers_per_group=1), HYBRID),
    "hybrid-4": Topology(ClusterConf(nworkers_per_group=4, nservers_per_group=2), HYBRID),
    "layers-2": Topology(ClusterConf(nworkers_per_group=2, nservers_per_group=2), LOCATIONS),
    "replicated-2": Topology(ClusterConf(nworkers_per_group=2, nservers_per_group=2, update="kWorker")),
    "groups-2x2": Topology(ClusterConf(nworker_groups=2, nworkers_per_group=2, nserver_groups=2), HYBRID),
}


def job_of(topology: Topology, stores: Path, plan: Path, steps: int) -> Job:
    """Return the job of a topology, which tests and writes checkpoints on its way; records are in ``stores``."""
    text = JOB
    for source, door in (("norm", "door"), ("drop", "door2")):
        head, _, tail = text.replace(f'srclayers: "{source}"', f'srclayers: "{door}"').rpartition("  layer {")
        text = f"{head}  {DOOR % (door, source, plan)}  layer {{{tail}"
    job = loads(text, str(stores / "small.conf"))
    layers = [layer.replace(**topology.cuts.get(layer.name, {})) for layer in job.neuralnet.layer]
    return job.replace(
        neuralnet=job.neuralnet.replace(layer=layers),
        cluster=topology.cluster,
        train_steps=steps,
        disp_freq=10,
        test_freq=steps // 4,
        test_steps=2,
        checkpoint_freq=steps // 3,
    )
