"""Graph grain: each iteration as a Dask task graph, with a task for each segment of a worker's iteration.

The dashboard then shows which layers run where, and which arrays go from worker to worker. Each task costs
milliseconds, so rounds are the default; both compute the same numbers. The graph is created in the driver's process,
its tasks run in the processes of Dask workers. Other code gets it by its name
(:func:`find_grain`).
"""

from __future__ import annotations

from distributed import Future

from dsinga.cluster.graph_grain.graph import send_iterations
from dsinga.cluster.graph_grain.plan import plan_iteration
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.cluster.run.grain import ROUNDS, Grain
from dsinga.errors import UserError
from dsinga.job import AlgType, Job, Phase

# The largest number of iterations in one graph.
MAX_STEPS = 16


def _send_round(run: ClusterRun, group: int, start: int, stop: int) -> list[Future]:
    plans = [plan_iteration(local) for local in run.config.nets[Phase.kTrain].locals]
    several = run.config.topology.groups > 1
    return run.send_graph(
        group,
        lambda client, keys, tokens: send_iterations(client, keys, plans, range(start, stop), tokens, several),
    )


def _check(job: Job) -> None:
    """Raise JobError for a job that graph grain cannot run."""
    if job.skip_bad_batches:
        raise job.error("graph grain cannot skip batches; train with grain round", "skip_bad_batches")
    if job.train_one_batch.alg is not AlgType.kBP:
        raise job.train_one_batch.error("graph grain runs kBP only; train other algorithms with grain round", "alg")


GRAPHS = Grain(_send_round, _check, MAX_STEPS)
_GRAINS = {"round": ROUNDS, "graph": GRAPHS}


def find_grain(name: str) -> Grain:
    """Return the grain of that name: "round" or "graph". Raises UserError for any other name."""
    if name not in _GRAINS:
        raise UserError(f"grain must be one of {', '.join(_GRAINS)}, not {name!r}")
    return _GRAINS[name]
