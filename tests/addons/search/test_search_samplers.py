"""Settings that samplers of Optuna suggest."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from distributed import Client

import dsinga
from dsinga import RunError, SearchRange, SearchResult, UserError
from dsinga.addons.search.samplers import SampledSettings
from dsinga.addons.search.space import Setting
from dsinga.job import Job

optuna = pytest.importorskip("optuna")

SPACE: dict[str, Any] = {
    "rate": SearchRange(1e-4, 1, log=True), "units": SearchRange(16, 70, step=16),
    "dropout": SearchRange(0, 0.5, step=0.1), "hidden": [(8,), (16, 16)], "kind": "relu",
}  # fmt: skip


def score(setting: Setting) -> float:
    return (np.log10(setting["rate"]) + 2) ** 2 + setting["dropout"]


def searched(sampler: Any, count: int, at_once: int, order: int, higher: bool = False) -> list[Setting]:
    """Return the settings of a search whose runs end in a random order; the first one fails."""
    random, sampled = np.random.default_rng(order), SampledSettings(sampler, SPACE, count, at_once)
    settings, scores, running = list[Setting](), dict[int, float | None](), list[int]()
    while len(scores) < count:
        while (setting := sampled.ask(scores, higher)) is not None:
            running.append(len(settings))
            settings.append(setting)
            assert len(running) <= at_once + len(scores)
        number = running.pop(int(random.integers(len(running))))
        scores[number] = None if number == 0 else -score(settings[number]) if higher else score(settings[number])
    assert sampled.ask(scores) is None
    return settings


def test_settings_do_not_depend_on_which_run_ends_first() -> None:
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=5)
    settings = searched(sampler, 25, 4, order=0)
    assert searched(sampler, 25, 4, order=1) == settings, "the sampler of the caller has not changed"
    assert searched(sampler, 25, 4, order=2, higher=True) == settings
    assert searched(optuna.samplers.TPESampler(seed=1, n_startup_trials=5), 25, 4, order=0) != settings
    assert np.mean([score(s) for s in settings[15:]]) < np.mean([score(s) for s in settings[:5]])


def test_values_are_those_of_the_space() -> None:
    for setting in searched(optuna.samplers.RandomSampler(seed=0), 40, 1, order=0):
        assert list(setting) == list(SPACE)
        assert 1e-4 <= setting["rate"] <= 1
        assert setting["units"] in (16, 32, 48, 64)
        assert setting["dropout"] in (0, 0.1, 0.2, 0.3, 0.4, 0.5)
        assert setting["hidden"] in [(8,), (16, 16)]
        assert setting["kind"] == "relu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": "tpe"}, "sampler is one of Optuna's, as optuna.samplers.TPESampler(seed=0), not 'tpe'"),
        ({"sampler": optuna.samplers.GridSampler({"a": [1]})}, "tried without a sampler; leave out GridSampler"),
        ({"space": {}}, "a sampler needs values to choose from, as in {'rate': SearchRange("),
        ({"count": None}, "say how many settings the sampler suggests, as in samples=20"),
        ({"at_once": 0}, "a sampler has at least 1 setting at once, not 0"),
        ({"space": [{"a": [1]}]}, "a sampler searches one dict; give each dict of the list"),
        ({"space": {"a": scipy.stats.uniform()}}, "a sampler cannot look into the distribution of 'a'; give a list"),
        ({"space": {"a": lambda random: 1}}, "a sampler cannot look into the distribution of 'a'; give a list"),
    ],
)
def test_what_a_sampler_cannot_search_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        SampledSettings(**{"sampler": optuna.samplers.RandomSampler(), "space": SPACE, "count": 3, **arguments})
    assert message in str(error.value)


RATE = "updater.learning_rate.base_lr"


def rows_of(result: SearchResult) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result]


@pytest.mark.parametrize("halving", [None, 2])
def test_a_search_that_is_killed_and_resumed_is_the_undisturbed_one(
    short: Job, client: Client, tmp_path: Path, halving: int | None
) -> None:
    """Many of the rates are so high that training fails."""
    space = {RATE: SearchRange(1e-3, 1e36, log=True), "updater.momentum": [0.0, 0.5]}
    sampler = optuna.samplers.TPESampler(seed=1, n_startup_trials=3)
    options = {"sampler": sampler, "at_once": 2, "samples": 6, "halving": halving, "progress": False}
    whole = dsinga.search(short, space, client, workspace=tmp_path / "whole", **options)
    assert {"finished", "failed"} <= {row["state"] for row in whole}
    asked = SampledSettings(sampler, space, 6, 2)
    scores = {row["number"]: row["score"] for row in whole}
    if halving is None:
        assert [asked.ask(scores) for _ in range(6)] == [{name: row[name] for name in space} for row in whole]
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for number in (2, 4, 5):
        shutil.rmtree(tmp_path / "killed" / f"setting-{number}")
    resumed = dsinga.search(short, space, client, workspace=tmp_path / "killed", resume=True, **options)
    assert rows_of(resumed) == rows_of(whole)


def test_a_search_of_a_sampler_whose_settings_all_fail_is_refused(short: Job, client: Client, tmp_path: Path) -> None:
    options = {"sampler": optuna.samplers.RandomSampler(seed=0), "samples": 2, "progress": False}
    for resume in (False, True):
        with pytest.raises(RunError, match="all 2 settings failed, the first one with: .*not finite"):
            dsinga.search(short, {RATE: [1e30]}, client, workspace=tmp_path, resume=resume, **options)
    with pytest.raises(UserError, match="one program trains them; leave out only"):
        dsinga.search(short, {RATE: [1e30]}, client, only=[0], **options)
