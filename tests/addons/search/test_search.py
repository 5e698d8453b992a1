"""Searches: many settings of a job on one cluster, their table, their faults, and going on with them."""

import asyncio
import csv
import logging
import math
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import RunError, SearchResult, UserError, nn
from dsinga.addons.search.result import setting_folder
from dsinga.addons.search.runs import SearchRuns
from dsinga.checkpoint import read_params
from dsinga.extensions import StopOnTime
from dsinga.job import Job
from dsinga.job.reader import with_fields
from dsinga.monitor import History
from tests.support.async_client import async_client
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RATE = "updater.learning_rate.base_lr"
LIMIT = 60


class Together:
    """A function of runs that holds the first ones up until as many are running at once as there is room for."""

    def __init__(self, count: int):
        self._count, self._barrier = count, threading.Barrier(count)
        self._lock = threading.Lock()
        self._seen = 0

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        with self._lock:
            self._seen += 1
            waits = self._seen <= self._count
        if waits and step == 2:
            self._barrier.wait(LIMIT)


def test_many_settings_have_the_results_of_as_many_trainings(short: Job, client: Client, tmp_path: Path) -> None:
    """The first three meet: none of them waited while a thread was free."""
    rates, seeds = [0.01, 0.02], [0, 1, 2]
    result = dsinga.search(
        short, {RATE: rates, "seed": seeds}, client, workspace=tmp_path, progress=False, extensions=[Together(3)]
    )
    assert [(row["number"], row["state"], row["steps"]) for row in result] == [(n, "finished", 4) for n in range(6)]
    assert [(row[RATE], row["seed"]) for row in result] == [(rate, seed) for rate in rates for seed in seeds]
    assert setting_folder(tmp_path, 7, 12) == tmp_path / "setting-07"
    assert setting_folder(tmp_path, 5, 12) == tmp_path / "setting-5", "a search with more settings goes on"
    for number in (0, 4):
        setting = {RATE: rates[number // 3], "seed": seeds[number % 3]}
        folder = setting_folder(tmp_path, number, 6)
        alone = dsinga.train(with_fields(short, setting), client, progress=False)
        assert alone.history[-1, "loss"] == result[number]["score"] == result.histories[number][-1, "loss"]
        assert_same(read_params(folder / "checkpoint" / "step4"), alone.params)
    best = min(result, key=lambda row: row["score"])
    assert result.best is best
    assert result.best_setting == {RATE: best[RATE], "seed": best["seed"]}
    assert result.best_result.history[-1, "loss"] == best["score"]
    with open(tmp_path / "search.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == [row["score"] for row in result]


def test_a_setting_that_fails_is_a_row(short: Job, client: Client, tmp_path: Path) -> None:
    space = [{RATE: [0.01, -1, 1e30]}, {"neuralnet.layer[conv].convolution_conf.kernel": 40}]
    result = dsinga.search(short, space, client, workspace=tmp_path, progress=False)
    assert [row["state"] for row in result] == ["finished", "failed", "failed", "failed"]
    assert "base_lr must be at least 0, not -1.0" in result[1]["remark"]
    assert "not finite" in result[2]["remark"]
    assert "kernel" in result[3]["remark"]
    assert result.best is result[0]
    assert result.sorted()[1:] == result[1:], "rows without a score come last"
    again = dsinga.search(short, space, workspace=tmp_path, progress=False, resume=True)
    assert list(again) == list(result), "nothing is trained again"
    assert_same(again.best_result.params, result.best_result.params)


def test_the_best_setting_goes_on_as_a_run_of_its_own(
    short: Job, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = dsinga.search(short, {RATE: [0.01]}, client, workspace=tmp_path, progress=False)
    longer = with_fields(short, result.best_setting).replace(train_steps=8)
    with caplog.at_level(logging.WARNING, "dsinga"):
        gone_on = dsinga.train(longer, client, workspace=tmp_path / "setting-0", resume=True, progress=False)
    assert gone_on.step == longer.train_steps > result.best["steps"]
    assert not caplog.records, "nobody misses the search"


def test_what_is_wrong_with_all_settings_is_raised(short: Job, client: Client) -> None:
    with pytest.raises(UserError, match="updater.momentumm=1: UpdaterConf has no field 'momentumm'"):
        dsinga.search(short, {"updater.momentumm": [1, 2]}, client, progress=False)
    with pytest.raises(RunError, match="all 2 settings failed, the first one with: .*not finite"):
        dsinga.search(short, {RATE: [1e30, 1e31]}, client, progress=False)
    with pytest.raises(UserError, match="'state' is a column of the result"):
        dsinga.search(lambda state: short, {"state": [1]}, client, progress=False)
    with pytest.raises(UserError, match="there is no setting 2; the search has 2"):
        dsinga.search(short, {"seed": [1, 2]}, client, progress=False, only=[2])
    with pytest.raises(UserError, match=r"only is a list of whole numbers or None, not 1"):
        dsinga.search(short, {"seed": [1, 2]}, client, progress=False, only=1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the function must return a dsinga.Job, not .*; of a model return model.job"):
        dsinga.search(lambda units: nn.Sequential([nn.Dense(units)]), {"units": [1]}, client)  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="resuming needs a workspace"):
        dsinga.search(short, {"seed": [1, 2]}, client, progress=False, resume=True)
    refused(lambda: dsinga.search(short, {"seed": [1, 2]}, client, worker=3), "'worker'", "did you mean 'workers'")
    refused(lambda: dsinga.search(short, {"seed": [1, 2]}, client, n_trials=3), "'n_trials'", "samples is how")
    with pytest.raises(UserError, match=r"^<lambda> has no argument 'steps'; did you mean 'step'\?"):
        dsinga.search(lambda step: short, [{"step": 1}, {"steps": 1}], client)
    refused(lambda: dsinga.search(lambda seed, rate: short, {"seed": [1, 2]}, client), "'rate'", "it is called")


@pytest.mark.parametrize(
    ("monitor", "message"),
    [
        ("train/lost", "there is no metric 'train/lost'; did you mean 'train/loss'?; the metrics of the job are "),
        ("train_acc", "the metrics of the job are train/loss, train/accuracy"),
        ("acuracy", "there is no metric 'train/acuracy'; did you mean 'train/accuracy'?"),
        ("val_lss", "the metrics of the job are train/loss, train/accuracy (those of val need validate_freq)"),
    ],
)
def test_a_metric_that_the_job_lacks_is_refused_before_training(
    short: Job, client: Client, monitor: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchRuns, "execute", lambda self: pytest.fail("it trains"))
    with pytest.raises(UserError) as error:
        dsinga.search(short, {"seed": [1, 2]}, client, progress=False, monitor=monitor, mode="min")
    assert message in str(error.value)


def test_a_value_of_a_wrong_type_is_refused_before_training(
    short: Job, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchRuns, "execute", lambda self: pytest.fail("it trains"))
    refused(lambda: dsinga.search(short, {"seed": "1,2"}), "'seed' is the text '1,2'", r"{'seed': \[1, 2\]}")
    refused(lambda: dsinga.search(short, {RATE: [0.1, "abc"]}, client, progress=False), "'abc'", "a number, not")
    with pytest.raises(UserError, match="^setting 2: seed=1.5: Job.seed takes a whole number, not 1.5"):
        dsinga.search(short, [{"seed": 1}, {RATE: 0.1}, {"seed": 1.5}], client, progress=False, only=[0])


class Interrupting:
    """A function of runs that interrupts the program once so many runs have shown their last row."""

    def __init__(self, after: int):
        self._left, self._lock = after, threading.Lock()

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        with self._lock:
            self._left -= step == 4
            if self._left == 0 and step == 4:
                os.kill(os.getpid(), signal.SIGINT)  # wakes up the main thread, whatever it waits for


def test_a_search_that_is_interrupted_goes_on(short: Job, client: Client, tmp_path: Path) -> None:
    space = {"seed": list(range(15))}  # so many that some are left, however late the main thread wakes up
    with pytest.raises(KeyboardInterrupt, match=r"\d+ of 15 settings have ended; go on with resume=True"):
        dsinga.search(short, space, client, workspace=tmp_path, progress=False, extensions=[Interrupting(2)])
    ended = [path for path in tmp_path.glob("setting-*") if (path / "setting.json").exists()]
    assert len(ended) < 15
    result = dsinga.search(short, space, client, workspace=tmp_path, progress=False, resume=True)
    for seed in (0, 14):
        alone = dsinga.train(short.replace(seed=seed), client, progress=False)
        assert result[seed]["score"] == alone.history[-1, "loss"]
    alone = dsinga.train(short.replace(seed=result.best["seed"]), client, progress=False)
    assert_same(result.best_result.params, alone.params)


def test_a_search_whose_runs_end_on_time_goes_on(short: Job, client: Client, tmp_path: Path) -> None:
    space = {"seed": [0, 1]}
    cut = dsinga.search(short, space, client, workspace=tmp_path, progress=False, extensions=[StopOnTime(1e-9)])
    assert [row["state"] for row in cut] == ["cut", "cut"]
    result = dsinga.search(short, space, client, workspace=tmp_path, progress=False, resume=True)
    assert [(row["state"], row["steps"]) for row in result] == [("finished", 4)] * 2
    whole = dsinga.search(short, space, client, progress=False)
    assert [row["score"] for row in result] == [row["score"] for row in whole]


def test_a_new_search_keeps_the_earlier_one(short: Job, client: Client, tmp_path: Path) -> None:
    dsinga.search(short, {"seed": [1]}, client, workspace=tmp_path, progress=False)
    with pytest.raises(UserError, match="setting-0 is of the setting seed=1, not seed=2; go on with the same"):
        dsinga.search(short, {"seed": [2]}, client, workspace=tmp_path, progress=False, resume=True)
    with pytest.raises(UserError, match="setting-0 has a score by train/loss, not train/accuracy; go on with monitor="):
        dsinga.search(short, {"seed": [1]}, client, monitor="train_accuracy", workspace=tmp_path, resume=True)
    dsinga.search(short, {"seed": [2]}, client, workspace=tmp_path, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["search-1", "search.csv", "setting-0"]
    assert sorted(path.name for path in (tmp_path / "search-1").iterdir()) == ["search.csv", "setting-0"]


def test_a_run_has_one_worker_where_neither_job_nor_call_says(short: Job, client: Client) -> None:
    job = short.replace(cluster=None)
    one = dsinga.search(job, {RATE: [0.01]}, client, progress=False)
    two = dsinga.search(job, {RATE: [0.01]}, client, workers=2, progress=False)
    for result, workers in ((one, 1), (two, 2)):
        assert result.best_result.job.cluster.nworkers_per_group == workers


def test_models_are_made_by_a_function_of_the_setting(client: Client) -> None:
    random = np.random.default_rng(0)
    y = random.integers(3, size=150)
    x = random.normal(y[:, None] * 4, 1, (150, 2)).astype(np.float32)

    def make(units: int, rate: float) -> Job:
        model = nn.Sequential([nn.Input((2,)), nn.Dense(units, "relu"), nn.Dense(3)])
        model.compile(nn.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model.job(x, y, validation_data=(x, y), epochs=2)

    space = {"units": [4, 8], "rate": lambda random: random.uniform(0.01, 0.1)}
    result = dsinga.search(make, space, client, samples=3, monitor="val_accuracy", progress=False)
    assert (result.monitor, result.higher) == ("val/accuracy", True)
    assert result.best["score"] == max(row["score"] for row in result)
    assert all(row["units"] in (4, 8) and 0.01 < row["rate"] < 0.1 for row in result)


def test_a_search_is_awaited_and_cancelled_in_an_event_loop(short: Job, tmp_path: Path) -> None:
    async def use() -> tuple[SearchResult, int]:
        async with async_client() as client:
            result = await dsinga.search(short, {"seed": [1, 2]}, client, progress=False)  # type: ignore[misc]
            running, loop = asyncio.Event(), asyncio.get_running_loop()
            searching = asyncio.ensure_future(
                dsinga.search(
                    short.replace(train_steps=1_000_000), {"seed": [1, 2]}, client, workspace=tmp_path, progress=False,
                    extensions=[lambda *_: loop.call_soon_threadsafe(running.set)],
                )  # type: ignore[arg-type]
            )  # fmt: skip
            await running.wait()
            searching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await searching
            return result, (await dsinga.train(short, client, progress=False)).step  # type: ignore[misc]

    result, step = asyncio.run(asyncio.wait_for(use(), LIMIT))
    assert len(result) == 2
    assert step == 4, "the threads are free again"


def test_a_search_without_a_cluster_starts_one_for_all_its_runs(short: Job) -> None:
    result = dsinga.search(short, {"seed": [1, 2]}, progress=False)
    assert [row["state"] for row in result] == ["finished"] * 2


def table() -> SearchResult:
    result = SearchResult("val/accuracy", True)
    rows = [(0.5, "finished"), (None, "failed"), (0.75, "finished"), (math.nan, "finished"), (0.9, "stopped")]
    for number, (score, state) in enumerate(rows):
        history = History([{"step": 1, "phase": "val", "accuracy": score or 0.0}])
        row = {"number": number, "units": 10 - number, "state": state, "score": score, "steps": 1, "seconds": 0.1}
        result.add({**row, "remark": "<why>" if state == "failed" else ""}, {"units": 10 - number}, history)
    return result


def test_the_best_is_that_of_the_runs_that_finished() -> None:
    result = table()
    assert result.best is result[2]
    assert result.best_setting == {"units": 8}
    assert repr(result) == (
        "<SearchResult of 5 settings (3 finished, 1 failed, 1 stopped): best 2 (units=8): val/accuracy 0.75>"
    )


def test_rows_are_sorted_by_any_column() -> None:
    result = table()
    assert [row["number"] for row in result.sorted()] == [2, 0, 4, 1, 3], "those that finished come first"
    assert [row["number"] for row in result.sorted("units")] == [4, 3, 2, 1, 0]
    assert [row["number"] for row in result.sorted("state")] == [1, 0, 2, 3, 4]
    refused(lambda: result.sorted("scores"), "'scores'", "did you mean 'score'")


def test_the_table_is_one_of_pandas_and_of_notebooks() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table())
    assert list(frame.columns) == table().columns
    assert frame.loc[frame.score.idxmax(), "number"] == 4
    html = table()._repr_html_()
    assert "<td>0.75</td>" in html
    assert "&lt;why&gt;" in html
    assert html.count("<tr>") == 6
    assert 'aria-label="val/accuracy of 5 settings"' in html
