"""Errors in the topology of a job, with field and remedy."""

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


def complaint(cluster: str, **changes: object) -> str:
    with pytest.raises(JobError) as raised:
        check(loads(JOB.replace("CLUSTER", cluster), "job.conf").replace(**changes))
    return str(raised.value)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("nserver_groups: 3", "nserver_groups: 3 must divide nworker_groups: 4"),
        ("update: kWorker", "keeps a copy of the params in every worker, and the copies of 4 worker group"),
        ("fullc_gather: true", "keeps weights in the workers, and the copies of 4 worker groups would drift"),
        ("block_size: 4096", "block_size is for slicing: kBlock; set that, or leave block_size out"),
        ("nserver_groups: 4 staleness: 1", "each of the 4 server groups has one worker group only; leave it out,"),
        ("nserver_groups: 4 sync_edge { group: 0 }", "sync_edge joins two server groups, as in sync_edge { group: 0"),
        ("nserver_groups: 4 sync_edge { group: 0 group: 4 }", "sync_edge names server group 4, but the job has 4, num"),
        ("nserver_groups: 4 sync_edge { group: 2 group: 2 }", "sync_edge joins server group 2 to itself"),
        ('user_sync_method: "kMeen"', "no sync_method is registered as 'kMeen'; did you mean 'kMean'?"),
        ("sync_edge { group: 0 group: 1 }", "sync_edge names server group 1, but the job has 1, numbered from 0"),
        (
            "nserver_groups: 4 sync_edge { group: 0 group: 1 } sync_edge { group: 3 group: 2 }",
            "no path of sync_edge leads from server group 0 to 2; their params would drift apart",
        ),
    ],
)
def test_a_topology_that_cannot_be_is_refused_with_its_line(cluster: str, expected: str) -> None:
    message = complaint(cluster)
    assert message.startswith("job.conf:5: ")
    assert expected in message


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
        "nserver_groups: 4 " + "".join(f"sync_edge {{ group: 2 group: {group} }} " for group in (0, 1, 3)),
    ],
)
def test_valid_topologies_are_accepted(cluster: str) -> None:
    check(loads(JOB.replace("CLUSTER", cluster)))


def test_a_bound_is_allowed_with_one_worker_group() -> None:
    """One group is never ahead of another: the same job runs with any number of groups."""
    check(loads(JOB.replace("CLUSTER", "staleness: 1").replace("nworker_groups: 4", "nworker_groups: 1")))
