"""Successive halving: who goes on, beside its definition; runs that pause are the beginnings of whole ones."""

import math
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dsinga
from dsinga import SearchResult, UserError
from dsinga.addons.search.halving import Halving, count_runs, make_rungs
from dsinga.addons.search.metric_values import MetricValues, Rung
from dsinga.extensions import EarlyStopping, EverySteps, Extension, KeepBest, LoopView
from dsinga.job import Job
from dsinga.job.reader import with_fields
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RATE = "updater.learning_rate.base_lr"
RATES = [0.01, 0.02, 0.001, 1e-4, 1e-5]
SCORES = st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan, None]), min_size=3, max_size=3), min_size=1)


@pytest.fixture(scope="module")
def tested(short: Job) -> Job:
    """The short job with tests of a batch each."""
    return short.replace(train_steps=18, test_freq=2, test_steps=1)


@pytest.fixture(scope="module")
def whole(tested: Job, threads: Client) -> SearchResult:
    """The search without halving."""
    return dsinga.search(tested, {RATE: RATES}, threads, progress=False)


def rank(scores: list[Any], rung: int, numbers: Any) -> list[int]:
    """Return the numbers with a score, the lowest one first."""
    known = [n for n in numbers if scores[n][rung] is not None and not math.isnan(scores[n][rung])]
    return sorted(known, key=lambda n: (scores[n][rung], n))


@given(SCORES, st.integers(2, 4))
def test_the_best_of_a_whole_rung_go_on(scores: list[Any], factor: int) -> None:
    """Where all that have gone on fail, the next best one does."""
    halving = Halving(3, factor, higher=False, asynchronous=False)
    waiting, begun = [(number, 0) for number in range(len(scores))], [[], [], []]
    while waiting:
        for number, rung in waiting:
            assert halving.going_on(busy=True) == []
            begun[rung].append(number)
            halving.add(number, rung, scores[number][rung])
        waiting = halving.going_on(busy=False)
    for rung in (0, 1):
        known = rank(scores, rung, begun[rung])
        count = max(1, math.floor(len(begun[rung]) / factor + 0.5))
        while count < len(known) and not rank(scores, rung + 1, known[:count]):
            count += 1
        assert begun[rung + 1] == known[:count]


@given(SCORES, st.integers(2, 4), st.randoms(use_true_random=False))
def test_the_best_so_far_go_on_at_once(scores: list[Any], factor: int, random: Any) -> None:
    """Whatever the order of ends: each goes on while it is among the best, and in the end they all have."""
    halving = Halving(3, factor, higher=False, asynchronous=True)
    running = [(number, 0) for number in range(len(scores))]
    ended: list[list[int]] = [[], [], []]
    while running:
        number, rung = running.pop(random.randrange(len(running)))
        ended[rung].append(number)
        halving.add(number, rung, scores[number][rung])
        went_on = halving.going_on(bool(running))
        for number, rung in went_on:
            count = len(ended[rung - 1])
            if running or rank(scores, 2, ended[2]):
                assert number in rank(scores, rung - 1, ended[rung - 1])[: count // factor]
        running += went_on
    assert rank(scores, 2, ended[2]) or not rank(scores, 1, set(ended[1]) - set(ended[2]))
    for rung in (1, 2):
        best = rank(scores, rung - 1, ended[rung - 1])[: len(ended[rung - 1]) // factor]
        assert set(best) <= set(ended[rung])
        assert len(ended[rung]) == len(set(ended[rung]))


@pytest.mark.parametrize(
    ("total", "factor", "first", "every", "expected"),
    [
        (90, 3, None, 1, [15, 45, 90]),
        (90, 3, None, 7, [21, 49, 90]),
        (90, 3, None, 60, [60, 90]),
        (100, 2, None, 10, [30, 50, 100]),
        (100, 3, 3, 1, [3, 9, 27, 81, 100]),
        (100, 4, 50, 20, [60, 100]),
    ],
)
def test_rungs_are_where_the_metric_is_known(
    total: int, factor: int, first: int | None, every: int, expected: list[int]
) -> None:
    rungs = make_rungs(total, factor, first, lambda step: min(total, -(-step // every) * every))
    assert rungs == [Rung(step, total) for step in expected]


def test_runs_of_other_lengths_have_rungs_at_the_same_share() -> None:
    assert not Rung(10, 90).is_done(19, 180)
    assert Rung(10, 90).is_done(20, 180)
    assert [count_runs(27, rungs, 3) for rungs in (1, 2, 3)] == [27, 36, 39]


def check_beginnings(result: SearchResult, whole: SearchResult) -> None:
    """Check that the runs of a search are the beginnings of those of a whole one."""
    for row in result:
        number = row["number"]
        for phase in ("train", "test"):
            ours, theirs = (each.histories[number].phase(phase)[:, ("step", "loss")] for each in (result, whole))
            assert list(map(tuple, ours)) == list(map(tuple, theirs))[: len(ours)]


def test_runs_that_pause_go_on_bit_for_bit(tested: Job, client: Client, tmp_path: Path, whole: SearchResult) -> None:
    options: dict[str, Any] = {"workspace": tmp_path, "halving": 3, "progress": False}
    result = dsinga.search(tested, {RATE: RATES}, client, **options)
    assert [(row["rung"], row["state"], row["steps"]) for row in result.sorted()] == [
        (3, "finished", 18), (2, "stopped", 10), *[(1, "stopped", 4)] * 3
    ]  # fmt: skip
    check_beginnings(result, whole)
    best = result.best["number"]
    assert result.best["score"] == whole[best]["score"]
    alone = dsinga.train(with_fields(tested, {RATE: RATES[best]}), client, progress=False)
    assert_same(result.best_result.params, alone.params)
    again = dsinga.search(tested, {RATE: RATES}, client, resume=True, **options)
    assert list(again) == list(result), "nothing is trained again"
    assert_same(again.best_result.params, alone.params)


def test_best_params_are_those_of_a_whole_run(tested: Job, client: Client) -> None:
    job, extensions = tested.replace(train_steps=6), [KeepBest("test/loss")]
    result = dsinga.search(job, {RATE: RATES[:3]}, client, progress=False, halving=2, extensions=extensions)
    best = result.best["number"]
    alone = dsinga.train(with_fields(job, result.best_setting), client, progress=False, extensions=extensions)
    assert result.best["score"] == min(alone.history.phase("test")[:, "loss"])
    assert result.best_result.workspace is None
    assert list(result.histories[best].phase("train")[:, "loss"]) == list(alone.history.phase("train")[:, "loss"])
    assert_same(result.best_result.params, alone.params)


class FailingAt(Extension):
    """Fails in a run with the learning rate ``rate`` after 8 steps."""

    def __init__(self, rate: float):
        self.trigger = EverySteps(8)
        self._rate = rate

    def run(self, loop: LoopView) -> None:
        if loop.learning_rate == self._rate:
            raise ValueError("no more")


def test_a_setting_that_fails_ranks_last(tested: Job, client: Client, tmp_path: Path, whole: SearchResult) -> None:
    """One diverges in the first rung, one fails in the second one; the others go on."""
    search: dict[str, Any] = {"job": tested, "space": {RATE: [0.01, 1e30, 0.02, 1e-4, 1e-5]}, "client": client}
    search |= {"workspace": tmp_path, "progress": False, "halving": 3}
    result = dsinga.search(**search, extensions=[FailingAt(0.02)])
    assert [(row["rung"], row["state"]) for row in result][:3] == [(3, "finished"), (1, "failed"), (2, "failed")]
    assert "not finite" in result[1]["remark"]
    assert "ValueError: no more" in result[2]["remark"]
    assert [row["number"] for row in result.sorted()][-2:] == [1, 2]
    assert result.best["score"] == whole[0]["score"]
    assert list(dsinga.search(**search, resume=True)) == list(result), "nothing is trained again"
    shutil.rmtree(tmp_path / "setting-2")
    mended = dsinga.search(**search, resume=True)
    assert [row["state"] for row in mended][:3] == ["stopped", "failed", "finished"]
    assert mended.best["score"] == whole[1]["score"]


def test_a_run_that_ends_by_itself_is_compared_without_further_steps(tested: Job, client: Client) -> None:
    stopping = EarlyStopping("test/loss", patience=1, min_delta=0.5)
    options: dict[str, Any] = {"halving": 2, "first_rung": 6, "progress": False, "extensions": [stopping]}
    result = dsinga.search(tested, {RATE: RATES[:3]}, client, **options)
    assert [(row["rung"], row["state"], row["steps"]) for row in result] == [(1, "finished", 2)] * 3
    assert result.best["score"] == min(row["score"] for row in result)


class Counting:
    """A function of all runs, which cannot be copied."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        with self._lock:
            self.count += 1


def test_settings_that_are_good_go_on_before_the_others_end(
    tested: Job, client: Client, tmp_path: Path, whole: SearchResult
) -> None:
    search: dict[str, Any] = {"job": tested, "space": {RATE: RATES}, "client": client, "workspace": tmp_path}
    search |= {"progress": False, "halving": 2, "asynchronous": True, "extensions": [Counting()]}
    result = dsinga.search(**search, first_rung=4)
    check_beginnings(result, whole)
    assert result.best["score"] == whole[result.best["number"]]["score"]
    again = dsinga.search(**search, first_rung=4, resume=True)
    assert list(again) == list(result)
    worst = result.sorted()[-1]
    number, extensions = worst["number"], [FailingAt(worst[RATE]), MetricValues("test/loss")]
    # In the second rung, as if it had been among the best before a kill.
    with pytest.raises(ValueError, match="no more"):
        dsinga.train(
            with_fields(tested, {RATE: worst[RATE]}), client, workspace=tmp_path / f"setting-{number}",
            resume=True, progress=False, extensions=extensions,
        )  # fmt: skip
    again = dsinga.search(**search, first_rung=4, resume=True)
    assert (worst["rung"], again[number]["rung"] > 1) == (1, True)
    check_beginnings(again, whole)
    refused(lambda: dsinga.search(**search, resume=True), "steps 4, 8", "6, 10, 18")


def test_what_halving_cannot_do_is_refused(tested: Job, client: Client) -> None:
    search: dict[str, Any] = {"space": {"seed": [1, 2]}, "client": client, "progress": False}
    refused(lambda: dsinga.search(tested, **search, halving=1), "halving is 1", "give a whole")
    refused(lambda: dsinga.search(tested, **search, first_rung=3), "first_rung has", "without a factor")
    refused(lambda: dsinga.search(tested, **search, halving=3, first_rung=18), "first_rung is 18", "give fewer")
    with pytest.raises(UserError, match="halving compares all settings, so one program trains them"):
        dsinga.search(tested, **search, halving=3, only=[1])
    with pytest.raises(UserError, match="at step 9 of 18, but the metric is not known before"):
        dsinga.search(tested.replace(test_freq=18), **search, halving=3)
