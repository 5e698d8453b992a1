"""Errors in how server groups average their params, with field and remedy."""

from pathlib import Path

import pytest

from dsinga import nn
from dsinga.job import ClusterConf, Job, SyncMethod, check, loads
from dsinga.reading.checked_job import check_job, resolve_epochs
from tests.cutting.test_cutting_check_cluster import JOB, complaint
from tests.support.refusals import refused

STILL = "learning_rate { type: kFixed base_lr: 0 }"
MEAN = "nserver_groups: 4 sync_method: kMean"


# Fields of the cluster, or after a bar those of its asynchronous mean.
FAULTS = [
    (f"{MEAN} sync_freq: 11", "sync_freq: 11 is more than train_steps: 10, so that groups average"),
    ("mean_conf {}", "mean_conf is for sync_method: kMean; set that, or leave mean_conf out"),
    ("sync_method: kMean", "sync_method: kMean is for several server groups; set nworker_groups and nserver_groups"),
    ("nserver_groups: 2 sync_method: kMean", "of the 4 worker groups, not 2; set nserver_groups: 4"),
    (f"{MEAN} compression: kInt4", "between the workers of a site, which has one; put it into mean_conf, for the"),
    ("| weight: 1 weight: 2", "weight has 2 numbers for 4 server groups"),
    (f"| {'weight: 0 ' * 4}", "weight is 0 for all server groups; give one for each"),
    ("| fragments: 2", "fragments: 2 cannot be averaged in turn within sync_freq: 1"),
    ("sync_freq: 5 | delay: 5", "delay: 5 must be less than sync_freq: 5, the steps after which slices"),
    (
        "sync_freq: 5 | delay: 4",
        "asynchronous groups do not wait for outer gradients; leave delay out, or asynchronous",
    ),
    ("| site: 'a*'", "site names the Dask workers of 1 groups, but there are 4; give a pattern for each"),
    ("| compression: kTopK", "compression of outer gradients is one of kNone, kBF16, kInt8, kInt4, not kTopK"),
    ("| compression: kInt8", "outer gradients that wait to be sent, in float32; leave compression out"),
    ("| every_step_until: 10", "every_step_until: 10 leaves none of train_steps: 10 for sync_freq; lower it"),
    ("| updater { type: kSGD clip_norm: 1 }", "not their norm; put clip_norm into the job's updater"),
    ("| updater { type: kSGD clip_global_norm: 1 }", "not their norm; put clip_global_norm into the job's updater"),
    (f"| updater {{ type: kSGD {STILL} }}", "drops what sites have learnt at each averaging; give a rate, such as 1"),
    (
        "| updater { type: kSGD ema_conf {} }",
        "the outer optimizer keeps no averages; put ema_conf into the job's updater",
    ),
]


@pytest.mark.parametrize(("text", "expected"), FAULTS)
def test_averaging_that_cannot_be_is_refused_with_its_line(text: str, expected: str) -> None:
    cluster, bar, mean = text.partition("| ")
    message = complaint(f"{MEAN} {cluster} mean_conf {{ asynchronous: true {mean} }}" if bar else cluster)
    assert message.startswith("job.conf:5: ")
    assert expected in message


def test_synchronous_groups_have_no_warm_up() -> None:
    assert "use mean_conf { every_step_until: 4 } in its place" in complaint(MEAN)
    assert complaint(MEAN).startswith("job.conf:1: ")


def test_synchronous_groups_have_no_age() -> None:
    assert "set asynchronous: true, or leave max_age out" in complaint(
        f"{MEAN} mean_conf {{ max_age: 3 }}", warmup_steps=0
    )


def test_a_valid_mean_conf_is_accepted() -> None:
    settings = f"asynchronous: true fragments: 5 mixing: 0.5 {'weight: 1 ' * 4}"
    check(loads(JOB.replace("CLUSTER", f"{MEAN} sync_freq: 5 mean_conf {{ {settings} }}")))


def test_averaging_rarer_than_the_epochs_last_are_refused(job: Job, stores: Path):
    sites = ClusterConf(nworker_groups=2, nserver_groups=2, sync_method=SyncMethod.kMean, sync_freq=11)
    counted = job.replace(train_steps=0, epochs=2, cluster=sites)
    refused(lambda: resolve_epochs(check_job(counted, [str(stores)])), "train_steps", "groups average their")


def test_sites_are_groups_that_average():
    conf = nn.Cluster(sites=3, workers=2, sync_freq=7, mean_conf={"mixing": 0.5})
    assert (conf.nworker_groups, conf.nserver_groups, conf.nworkers_per_group, conf.sync_freq) == (3, 3, 2, 7)
    assert (conf.sync_method.name, conf.mean_conf.mixing, conf.mean_conf.updater.type_name) == (
        "kMean",
        0.5,
        "kNesterov",
    )
    assert nn.Cluster(sites=1) == nn.Cluster()
    refused(lambda: nn.Cluster(sites=2, groups=2), "2 is the", "leave groups out")
