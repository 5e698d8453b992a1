"""Server groups that average their params compute what the papers say, with the same bits whatever comes first."""

from pathlib import Path

import numpy as np
import pytest

from dsinga import nn
from dsinga.addons.sites.averaging_rule import AveragingRule
from dsinga.addons.sites.mean_conf import MeanConf
from dsinga.base.errors import RunError
from dsinga.base.registry import lookup
from dsinga.cluster.server import Slice, SliceSpec
from dsinga.cutting.cluster_topology import Topology
from dsinga.job import ClusterConf, Job, SyncMethod, check, loads
from dsinga.reading.checked_job import check_job, resolve_epochs
from dsinga.testing import GroupSyncContract
from tests.cutting.test_cutting_check_cluster import JOB, complaint
from tests.support.mean_groups import SIZE, MeanGroups, diloco, gradient, rate, streaming_diloco
from tests.support.refusals import refused

SUM = rate("kSGD", 1.0)  # the outer optimizer that sets the mean of the params
INNERS = {"kSGD": 0.02, "kAdamW": 0.01, "kMuon": 0.02}


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("period", [1, 5, 50])
@pytest.mark.parametrize("kind", INNERS)
@pytest.mark.parametrize("outer", ["DiLoCo", "mean of params"])
def test_groups_compute_algorithm_1_of_diloco(groups, period, kind, outer):
    lr, decay, blocks = INNERS[kind], 0.01, max(2, 12 // period)
    inner = rate(kind, lr, weight_decay=decay, muon_conf={} if kind == "kMuon" else None)
    if outer == "DiLoCo":
        trained = MeanGroups(groups, period, inner)
        expected = diloco(groups, period, blocks, kind, lr, decay)
    else:
        trained = MeanGroups(groups, period, inner, updater=SUM)
        expected = diloco(groups, period, blocks, kind, lr, decay, outer_lr=1.0, momentum=0.0)
    trained.train_all(period * blocks)
    for group in range(groups):
        np.testing.assert_array_equal(trained.value(group), trained.value(0))
    np.testing.assert_allclose(trained.value(0), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize(("period", "delay", "parts"), [(5, 1, 1), (5, 4, 3), (10, 5, 4)])
@pytest.mark.parametrize("mixing", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["kSGD", "kAdamW"])
def test_groups_compute_algorithm_2_of_streaming_diloco(groups, period, delay, parts, mixing, kind):
    ends = np.cumsum([0] + [SIZE // parts] * parts)
    fragments = [slice(start, stop) for start, stop in zip(ends, ends[1:], strict=False)]
    specs = [SliceSpec(Slice(id, f"w{id}", 0, SIZE // parts, 0), whole_param=f"w{id}") for id in range(parts)]
    inner, steps = rate(kind, INNERS[kind]), 3 * period + delay // 2
    trained = MeanGroups(groups, period, inner, specs=specs, delay=delay, mixing=mixing, fragments=parts)
    for _ in range(steps):
        trained.train_together()
    local, outer = streaming_diloco(groups, period, steps, kind, INNERS[kind], delay, mixing, fragments)
    for expected in (local, [outer] * groups):
        for group in range(groups):
            values = np.concatenate([trained.value(group, id) for id in range(parts)])
            np.testing.assert_allclose(values, expected[group], rtol=1e-6, atol=1e-6)
        trained.flush()


def test_weights_are_those_of_federated_averaging():
    expected = diloco(2, 5, 3, "kSGD", 0.05, outer_lr=1.0, momentum=0.0, weights=[3, 1])
    trained = MeanGroups(2, 5, rate("kSGD", 0.05), updater=SUM, weight=[300, 100])
    trained.train_all(15)
    np.testing.assert_allclose(trained.value(0), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "moments"),
    [
        ({}, {0: [4, 8, 12], 1: [4, 8, 12]}),
        ({"every_step_until": 3}, {0: [1, 2, 3, 7, 11], 1: [1, 2, 3, 7, 11]}),
        ({"fragments": 2}, {0: [4, 8, 12], 1: [2, 6, 10]}),
        ({"fragments": 4, "every_step_until": 1, "delay": 3}, {0: [1, 5, 9], 1: [1, 2, 6, 10], 3: [1, 4, 8, 12]}),
    ],
)
def test_slices_are_averaged_every_period_in_turn_and_at_first_after_each_step(settings, moments):
    policy = AveragingRule(MeanConf(**settings), 4, 2)
    for id, versions in moments.items():
        assert [version for version in range(1, 13) if policy.is_due(id, version)] == versions
        assert [policy.rounds(id, version) for version in versions] == list(range(1, len(versions) + 1))
        delay, every = (getattr(policy.conf, name) for name in ("delay", "every_step_until"))
        applied = [version if version <= every else version + delay for version in versions]
        assert [policy.applied_at(id, version) for version in applied] == versions
        for version in range(1, 13):
            made = [sent for sent, end in zip(versions, applied, strict=True) if end <= version]
            assert policy.age(id, version) == version - max(made, default=0)
            in_flight = [sent for sent, end in zip(versions, applied, strict=True) if sent <= version < end]
            assert policy.in_flight_at(id, version) == (in_flight[0] if in_flight else None)


@pytest.mark.parametrize("links", [None, [(0, 1), (0, 2)], [(0, 1), (1, 2)]])
@pytest.mark.parametrize(
    "settings", [{}, {"compression": "kInt4"}, {"weight": [1, 2, 0.5]}, {"mixing": 0.3, "delay": 1}]
)
def test_any_order_of_messages_and_any_links_give_the_same_bits(links, settings):
    expected = MeanGroups(3, 2, rate("kAdamW", 0.05), **settings)
    expected.train_all(7)
    expected.flush()
    random = np.random.default_rng(0)
    trained = MeanGroups(3, 2, rate("kAdamW", 0.05), links, delayed=True, **settings)
    while min(trained.steps) < 7 or trained.messages:
        ready = [group for group, step in enumerate(trained.steps) if step < 7 and trained.is_ready(group)]
        if trained.messages and (not ready or random.random() < 0.5):
            trained.deliver(random.integers(len(trained.messages)))
        else:
            trained.train(random.choice(ready))
    trained.flush()
    for group in range(3):
        np.testing.assert_array_equal(trained.value(group), expected.value(0))


@pytest.mark.parametrize("step", [4, 7, 10])
@pytest.mark.parametrize(
    "settings",
    [{}, {"compression": "kInt8", "mixing": 0.5, "delay": 3}, {"fragments": 2}, {"fragments": 2, "delay": 4}],
)
def test_shards_that_begin_from_a_snapshot_go_on_with_the_same_bits(step, settings):
    specs = [SliceSpec(Slice(id, f"p{id}", 0, SIZE, 0), trainable=id < 2) for id in range(3)]

    def train(groups, steps):
        for _ in range(steps):
            for group in range(2):
                at = groups.steps[group]
                for id in range(3):
                    groups.train(group, id)
                    groups.steps[group] = at
                groups.steps[group] += 1

    whole = MeanGroups(2, 5, rate("kAdamW", 0.05), specs=specs, **settings)
    train(whole, step)
    states = [shard.snapshot(step, 1) for shard in whole.shards]
    resumed = MeanGroups(2, 5, rate("kAdamW", 0.05), specs=specs, start=step, states=states, **settings)
    for groups in (whole, resumed):
        train(groups, 13 - step)
        groups.flush()
    for group in range(2):
        for id in range(3):
            np.testing.assert_array_equal(resumed.value(group, id), whole.value(group, id))


def test_statistics_become_the_mean_of_their_values():
    spec = SliceSpec(Slice(0, "variance", 0, SIZE, 0), trainable=False)
    groups = MeanGroups(2, 3, rate("kSGD", 0.1), specs=[spec])
    for group, number in enumerate([2.0, 4.0]):
        for _ in range(3):
            groups.train(group, compute=lambda *_, number=number: np.full(SIZE, number, np.float32))
    np.testing.assert_array_equal(groups.value(0), np.full(SIZE, 3, np.float32))
    np.testing.assert_array_equal(groups.value(1), groups.value(0))


@pytest.mark.parametrize("compression", ["kBF16", "kInt8", "kInt4"])
def test_compressed_changes_lead_to_the_same_place(compression):
    values = {}
    for name in ("kNone", compression):
        groups = MeanGroups(2, 5, rate("kSGD", 0.1), compression=name, updater=SUM)
        for _ in range(200):
            for group in range(2):
                groups.train(group, compute=lambda group, step, value: gradient(group, 0, value))
        values[name] = groups.value(0)
    assert values[compression].tobytes() != values["kNone"].tobytes()
    np.testing.assert_allclose(values[compression], values["kNone"], atol=5e-2)


def test_a_group_that_waits_says_for_which_and_ends_when_the_shard_is_closed():
    groups = MeanGroups(3, 2, rate("kSGD", 0.1), delayed=True)
    for _ in range(2):
        groups.train(0)
    shard = groups.shards[0]
    waiting = shard.pull([0], 2, 0)
    assert "slice w[0:12] waits after step 2 for the outer gradient of server group 1, 2" in shard.pending()
    error = RunError("the run has ended")
    shard.close(error)
    assert waiting.exception(0) is error
    with pytest.raises(RunError, match="the run has ended"):
        shard.group_sync.receive(0, [0, 2, 1], [np.ones(SIZE, np.float32)], 1)


def push(groups, group, change, steps=2):
    """Let a group change its value by ``change`` in so many steps, which end with an outer step."""
    for _ in range(steps):
        groups.train(group, compute=lambda *_: np.full(SIZE, -change / steps, np.float32))


def test_asynchronous_groups_do_not_wait_and_a_late_change_counts_less():
    groups = MeanGroups(2, 2, rate("kSGD", 1.0), delayed=True, updater=SUM, asynchronous=True, max_age=3)
    for _ in range(4):  # the other group has done four outer steps when this one has done one: it is three late
        push(groups, 0, 1.0)
        groups.deliver()
    np.testing.assert_array_equal(groups.value(0), np.full(SIZE, 1 + 4 / 2))
    np.testing.assert_array_equal(groups.value(1), groups.value(0))
    push(groups, 1, 1.0)
    groups.flush()
    expected = np.full(SIZE, 1 + 4 / 2 + 1 / 2)  # its first change: nothing is known of how late it is
    np.testing.assert_allclose(groups.value(0), expected)
    for _ in range(4):
        push(groups, 0, 1.0)
    groups.flush()
    push(groups, 1, 1.0)
    groups.flush()
    expected += 4 / 2 + 1 / 2 / np.sqrt(1 + 3)
    for _ in range(5):
        push(groups, 0, 1.0)
    groups.flush()
    push(groups, 1, 1.0)  # four late, which is more than max_age
    groups.flush()
    for group in range(2):
        np.testing.assert_allclose(groups.value(group), expected + 5 / 2)


@pytest.mark.parametrize("start", [0, 1000])
def test_no_outer_step_of_asynchronous_groups_is_lost_where_a_run_goes_on(start):
    groups = MeanGroups(2, 2, rate("kSGD", 1.0), delayed=True, updater=SUM, asynchronous=True, max_age=3, start=start)
    for _ in range(3):  # each averages before it hears of the other
        for group in range(2):
            push(groups, group, 1.0)
        groups.flush()
    for group in range(2):
        np.testing.assert_allclose(groups.value(group), np.full(SIZE, 1 + 3))


@pytest.mark.parametrize("updater", [SUM, rate("kNesterov", 0.7, momentum=0.9)])
def test_asynchronous_groups_reach_what_synchronous_ones_reach(updater):
    values = []
    for asynchronous in (False, True):
        groups = MeanGroups(3, 5, rate("kSGD", 0.1), updater=updater, asynchronous=asynchronous)
        for _ in range(400):
            for group in range(3):
                groups.train(group, compute=lambda group, step, value: gradient(group, 0, value))
        groups.flush()
        values.append([groups.value(group) for group in range(3)])
    np.testing.assert_allclose(values[1], values[0], atol=0.1)
    np.testing.assert_allclose(values[1][1], values[1][0], atol=1e-2)


def test_an_asynchronous_group_that_comes_back_begins_from_the_outer_params():
    groups = MeanGroups(2, 2, rate("kSGD", 1.0), updater=rate("kNesterov", 0.7, momentum=0.9), asynchronous=True)
    push(groups, 0, 1.0)
    push(groups, 1, 1.0)
    push(groups, 0, 1.0, steps=1)  # not a part of the outer params yet
    outer = groups.shards[0].snapshot(3, 1).state[0]["outer.value"]
    copy = groups.shards[0].group_sync.values_for(1, 1, source=0)
    np.testing.assert_array_equal(copy.values[0], outer)
    assert copy.state[0].keys() == {"outer.value", "outer.history"}


# Averaging passes the contract, synchronous or not.
def policy(groups, **mean):
    conf = MeanConf(**mean)
    return lookup("sync_method", "kMean")(
        Topology(1, 1, groups=groups, server_groups=groups, sync_freq=3, mean=conf), None
    )


class TestSynchronous(GroupSyncContract):
    tolerance = 0.0

    def create(self, groups):
        return policy(groups)


class TestDelayed(GroupSyncContract):
    tolerance = 0.0

    def create(self, groups):
        return policy(groups, delay=1, mixing=0.5, fragments=2, compression="kInt8")


class TestAsynchronous(GroupSyncContract):
    def create(self, groups):
        return policy(groups, asynchronous=True, updater=rate("kSGD", 1.0))  # copies differ with momentum


# Errors in how server groups average their params, with field and remedy.
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
