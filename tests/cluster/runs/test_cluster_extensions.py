"""Extensions in real runs: what they see, and what they may do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga import UserError
from dsinga.api import train
from dsinga.checkpoint import read_checkpoint, read_params
from dsinga.extensions import EarlyStopping, KeepBest, StopOnTime
from dsinga.job import ClusterConf, Job, LRGenConf, UpdatePlace
from tests.support.extension_runs import Acting, rows, validating
from tests.support.refusals import refused
from tests.support.small_job import assert_same, with_topology


class TestTheLearningRate:
    """A factor from a step on is the same, to the bit, as a schedule that has it."""

    def schedule(self, job: Job, start: int) -> Job:
        conf = LRGenConf(type="kFixedStep", base_lr=0.01, fixedstep_conf={"step": [0, start], "step_lr": [0.01, 0.005]})
        return job.replace(updater=job.updater.replace(learning_rate=conf))

    @pytest.mark.parametrize("update", [UpdatePlace.kWorker, pytest.param(UpdatePlace.kServer, marks=pytest.mark.ci)])
    def test_it_changes_at_one_step_everywhere(self, job: Job, processes: Client, update: UpdatePlace) -> None:
        job = with_topology(job, 3, 2).replace(train_steps=16)
        job.cluster.update = update  # type: ignore[union-attr]
        expected = train(self.schedule(job, 13), processes, progress=False)
        now = Acting(100, lambda loop: loop.set_rate_factor(13, 0.5), after=13)
        assert_same(train(job, processes, extensions=[now], progress=False).params, expected.params)
        ahead = Acting(100, lambda loop: loop.set_rate_factor(13, 0.5), after=4)
        assert_same(train(job, processes, extensions=[ahead], progress=False).params, expected.params)

    @pytest.mark.ci
    def test_it_changes_in_graph_grain(self, job: Job, threads: Client) -> None:
        job = with_topology(job, 2).replace(train_steps=12)
        expected = train(self.schedule(job, 5), threads, progress=False)
        now = Acting(100, lambda loop: loop.set_rate_factor(5, 0.5), after=5)
        assert_same(train(job, threads, extensions=[now], grain="graph", progress=False).params, expected.params)

    def test_a_step_that_is_done_keeps_its_rate(self, job: Job, threads: Client) -> None:
        late = Acting(100, lambda loop: loop.set_rate_factor(12, 0.5), after=13)
        with pytest.raises(UserError, match="a step of at least 13, which is done, and a factor of at least 0, not 12"):
            train(with_topology(job, 1), threads, extensions=[late], progress=False)


@pytest.mark.ci
def test_extensions_that_only_look_change_no_bit(job: Job, threads: Client, tmp_path: Path) -> None:
    job = validating(job, 3, 2)
    seen: list[int] = []
    looking: Sequence[Any] = [
        lambda step, metrics: seen.append(step),
        Acting(3, lambda loop: (loop.params(), loop.evaluate("val"), loop.write_checkpoint())),
        KeepBest("val/loss"),
        EarlyStopping("val/loss", patience=1000),
        StopOnTime("1h"),
    ]
    plain = train(job, threads, progress=False)
    with_extensions = train(job, threads, workspace=tmp_path, extensions=looking, progress=False)
    assert rows(with_extensions) == rows(plain)
    assert seen == [row["step"] for row in plain.history]
    for step in (3, 39):
        assert read_checkpoint(tmp_path / "checkpoint" / f"step{step}").step == step
    if not with_extensions.remarks:  # the last params were the best
        assert_same(with_extensions.params, plain.params)
    assert_same(read_checkpoint(tmp_path / "checkpoint" / "step40").params, plain.params)


def test_an_extension_sees_the_run_at_its_step(job: Job, threads: Client) -> None:
    job = validating(job, 2)
    found: dict[int, tuple[Any, ...]] = {}

    def look(loop) -> None:
        found[loop.step] = loop.params(), loop.evaluate("val", 1), dict(loop.metrics), loop.train_steps

    train(job, threads, extensions=[Acting(10, look)], progress=False)
    assert list(found) == [10, 20, 30, 40]
    params, metrics, latest, train_steps = found[20]
    expected = train(job.replace(train_steps=20, validate_steps=1), threads, progress=False)
    assert_same(params, expected.params)
    (row,) = [row for row in expected.history.phase("val") if row["step"] == 20]
    assert metrics == {name: row[name] for name in metrics}
    assert train_steps == 40
    assert {"train/loss", "val/accuracy"} <= latest.keys()


def test_mistakes_are_named_with_their_remedies(job: Job, threads: Client) -> None:
    act = Acting(10, lambda loop: loop.evaluate("test"))
    refused(lambda: train(validating(job), threads, extensions=[act], progress=False), "'test'", "give it test_freq")

    class Hasty(Acting):
        pauses = False

    with pytest.raises(UserError, match=r"params\(\) is for extensions that pause training"):
        train(validating(job), threads, extensions=[Hasty(10, lambda loop: loop.params())], progress=False)


def test_early_stopping_in_graph_grain(job: Job, threads: Client) -> None:
    rule = [EarlyStopping("val/accuracy", patience=2, min_delta=2)]
    by_rounds = train(validating(job, 2), threads, extensions=rule, progress=False)
    by_graphs = train(validating(job, 2), threads, extensions=rule, grain="graph", progress=False)
    assert by_rounds.step == by_graphs.step == 8
    assert_same(by_rounds.params, by_graphs.params)
    assert rows(by_rounds) == rows(by_graphs)


@pytest.mark.parametrize(
    ("figures", "warmup"),
    [
        pytest.param({"nworker_groups": 3, "staleness": 1}, 6, marks=pytest.mark.ci),
        ({"nworker_groups": 2, "nserver_groups": 2}, 0),
        ({"nworker_groups": 2, "nserver_groups": 2}, 1000),
    ],
    ids=["bounded", "Hogwild", "warm-up of Hogwild"],
)
def test_stopping_ends_all_worker_groups(
    job: Job, threads: Client, tmp_path: Path, figures: dict[str, int], warmup: int
) -> None:
    """In the middle of asynchronous training, and in the warm-up of the first group alone."""
    job = validating(job, train_steps=100_000, cluster=ClusterConf(**figures), warmup_steps=warmup)
    rule = EarlyStopping("val/accuracy", patience=2, min_delta=2)
    result = train(job, threads, workspace=tmp_path, extensions=[rule], progress=False)
    assert result.step == 8
    assert "has not improved" in result.stopped
    assert_same(read_params(tmp_path / "checkpoint"), result.params)
    assert [row["step"] for row in result.history.phase("val")] == [0, 4, 8, 8], "the last one when all have ended"
