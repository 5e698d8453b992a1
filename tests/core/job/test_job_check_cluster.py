"""Errors in the topology of a job, with field and remedy."""

from __future__ import annotations

import pytest

from dsinga.job import JobError, check, loads

JOB = """train_steps: 10 warmup_steps: 4
updater { type: kSGD }
cluster {
  nworker_groups: 4
  CLUSTER
}
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "a" batchsize: 8 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""

STILL = "learning_rate { type: kFixed base_lr: 0 }"
MEAN = "nserver_groups: 4 sync_method: kMean"


def complaint(cluster: str, **changes: object) -> str:
    with pytest.raises(JobError) as raised:
        check(loads(JOB.replace("CLUSTER", cluster), "job.conf").replace(**changes))
    return str(raised.value)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("nserver_groups: 3", "nserver_groups: 3 must divide nworker_groups: 4"),
        (
            "update: kWorker",
            "update: kWorker keeps a copy of the params in every worker, and the copies of 4 worker groups",
        ),
        (
            "fullc_gather: true",
            "fullc_gather keeps weights in the workers, and the copies of 4 worker groups would drift",
        ),
        ("block_size: 4096", "block_size is for slicing: kBlock; set that, or leave block_size out"),
        (
            "nserver_groups: 4 staleness: 1",
            "each of the 4 server groups has one worker group only; leave it out, or use",
        ),
        ("nserver_groups: 4 sync_edge { group: 0 }", "sync_edge joins two server groups, as in sync_edge { group: 0"),
        ("nserver_groups: 4 sync_edge { group: 0 group: 4 }", "sync_edge names server group 4, but the job has 4, num"),
        ("nserver_groups: 4 sync_edge { group: 2 group: 2 }", "sync_edge joins server group 2 to itself"),
        ("sync_edge { group: 0 group: 1 }", "sync_edge names server group 1, but the job has 1, numbered from 0"),
        (
            "nserver_groups: 4 sync_edge { group: 0 group: 1 } sync_edge { group: 3 group: 2 }",
            "no path of sync_edge leads from server group 0 to 2; their params would drift apart",
        ),
        ("mean_conf {}", "mean_conf is for sync_method: kMean; set that, or leave mean_conf out"),
        (
            "sync_method: kMean",
            "sync_method: kMean is for several server groups; set nworker_groups and nserver_groups",
        ),
        (
            "nserver_groups: 2 sync_method: kMean",
            "sync_method: kMean needs a server group for each of the 4 worker groups, not 2; set nserver_groups: 4",
        ),
        (
            f"{MEAN} sync_freq: 11",
            "sync_freq: 11 is more than train_steps: 10, so that the groups agree at the end only",
        ),
        (f"{MEAN} mean_conf {{ asynchronous: true weight: 1 weight: 2 }}", "weight has 2 numbers for 4 server groups"),
        (
            f"{MEAN} mean_conf {{ asynchronous: true {'weight: 0 ' * 4}}}",
            "weight is 0 for all server groups; give one for each",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true fragments: 2 }}",
            "fragments: 2 cannot agree in turn within sync_freq: 1",
        ),
        (
            f"{MEAN} sync_freq: 5 mean_conf {{ asynchronous: true delay: 5 }}",
            "delay: 5 must be less than sync_freq: 5, the steps after which the slices agree again",
        ),
        (
            f"{MEAN} sync_freq: 5 mean_conf {{ asynchronous: true delay: 4 }}",
            "asynchronous groups do not wait for changes; leave delay out, or asynchronous",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true site: 'a*' }}",
            "site names the Dask workers of 1 groups, but there are 4; give a pattern for each",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true compression: kTopK }}",
            "compression of changes is one of kNone, kBF16, kInt8, kInt4, not kTopK",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true compression: kInt8 }}",
            "asynchronous groups add up changes that wait to be sent, in float32; leave compression out",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true every_step_until: 10 }}",
            "every_step_until: 10 leaves none of train_steps: 10 for sync_freq; lower it",
        ),
        (f"{MEAN} compression: kInt4", "between the workers of a site, which has one; put it into mean_conf, for the"),
        (
            f"{MEAN} mean_conf {{ asynchronous: true updater {{ type: kSGD clip_norm: 1 }} }}",
            "the outer updater has slices of the changes, not their norm; put clip_norm into the job's updater",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true updater {{ type: kSGD clip_global_norm: 1 }} }}",
            "not their norm; put clip_global_norm into the job's updater",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true updater {{ type: kSGD {STILL} }} }}",
            "base_lr: 0 of the outer updater drops what sites have learnt at each agreement; give a rate, such as 1",
        ),
        (
            f"{MEAN} mean_conf {{ asynchronous: true updater {{ type: kSGD ema_conf {{}} }} }}",
            "the outer updater keeps no averages; put ema_conf into the job's updater",
        ),
    ],
)
def test_a_topology_that_cannot_be_is_refused_with_its_line(cluster: str, expected: str) -> None:
    message = complaint(cluster)
    assert message.startswith("job.conf:5: ")
    assert expected in message


def test_synchronous_groups_have_no_warm_up() -> None:
    assert "use mean_conf { every_step_until: 4 } in its place" in complaint(MEAN)
    assert complaint(MEAN).startswith("job.conf:1: ")


def test_synchronous_groups_have_no_age() -> None:
    assert "set asynchronous: true, or leave max_age out" in complaint(
        f"{MEAN} mean_conf {{ max_age: 3 }}", warmup_steps=0
    )


def test_a_warm_up_must_end_before_the_run_does() -> None:
    message = complaint("", warmup_steps=11)
    assert message == (
        "job.conf:1: warmup_steps: 11 is more than train_steps: 10; the other worker groups would never begin"
    )


@pytest.mark.parametrize(
    "cluster",
    [
        "nserver_groups: 2 staleness: 1",
        "staleness: 0 pull: kDeferred compression: kOneBit",
        "nserver_groups: 4 sync_topology: kRing sync_freq: 5",
        f"{MEAN} sync_freq: 5 mean_conf {{ asynchronous: true fragments: 5 mixing: 0.5 {'weight: 1 ' * 4} }}",
        "nserver_groups: 4 " + "".join(f"sync_edge {{ group: 2 group: {group} }} " for group in (0, 1, 3)),
    ],
)
def test_valid_topologies_are_accepted(cluster: str) -> None:
    check(loads(JOB.replace("CLUSTER", cluster)))


def test_a_bound_is_allowed_with_one_worker_group() -> None:
    """One group is never ahead of another: the same job runs with any number of groups."""
    check(loads(JOB.replace("CLUSTER", "staleness: 1").replace("nworker_groups: 4", "nworker_groups: 1")))
