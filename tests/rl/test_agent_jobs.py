"""Agents as jobs like any other: extensions, searches, background runs and options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import dsinga
from dsinga import nn, rl
from dsinga.base.errors import UserError
from dsinga.extensions import EverySteps, Extension, KeepBest, LoopView
from dsinga.job import Job
from dsinga.monitor import read_metrics
from tests.core.job.test_job_component import check_definitions
from tests.support.refusals import refused
from tests.support.small_job import assert_same

TEXT = """
name: "cart"
train_steps: 384
disp_freq: 64
test_freq: 128
checkpoint_freq: 128
seed: 1
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.002 } }
neuralnet {
  layer { name: "observation" type: kRecordInput store_conf { shape: 4 } }
  layer { name: "fc" type: kInnerProduct srclayers: "observation" innerproduct_conf { num_output: 8 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "policy" type: kInnerProduct srclayers: "fc" innerproduct_conf { num_output: 2 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "value" type: kInnerProduct srclayers: "fc" innerproduct_conf { num_output: 1 }
    param { init { type: kUniformSqrtFanIn } } }
}
reinforcement {
  environment: "CartPole-v1" algorithm: kA2C num_environments: 4 rollout_steps: 16 evaluation_episodes: 2
}
"""


def job(more: str = "", *changes: str) -> Job:
    return dsinga.loads(TEXT + more, overrides=changes)


def train(of: Job, **options: Any) -> Any:
    return dsinga.train(of, progress=False, **options)


def test_an_agent_is_trained_as_any_job(tmp_path: Path) -> None:
    whole = train(job(), workspace=tmp_path)
    assert type(whole) is rl.AgentResult
    assert isinstance(whole, dsinga.Result)
    assert whole.step == 384
    assert whole.history[:, ("step", "phase")] == [
        (64, "train"), (128, "train"), (128, "test"), (192, "train"), (256, "train"), (256, "test"), (320, "train"),
        (384, "train"), (384, "test"),
    ]  # fmt: skip
    same = rl.train(job(), progress=False)
    assert_same(same.params, whole.params)
    assert_same(whole.agent.algorithm.params, whole.params)
    again = train(job(), workspace=tmp_path, resume=True)
    assert "nothing was left to do: the run has done its 384 train_steps" in repr(again)


def test_an_agent_is_stopped_early_and_keeps_its_best_params(tmp_path: Path) -> None:
    stop = "extension { type: kEarlyStopping monitor: 'test/episode_return' patience: 1 min_delta: 1000 }"
    result = train(job(stop), workspace=tmp_path, extensions=[KeepBest("test/episode_return")])
    assert result.step == 256
    assert "test/episode_return has not improved on its best" in result.stopped
    best = max(result.history.phase("test"), key=lambda row: row["episode_return"])
    assert f"after {best['step']} steps" in result.remarks[0]
    assert_same(result.agent.algorithm.params, result.params)
    assert result.history == read_metrics(tmp_path / "metrics.jsonl")
    assert train(job(stop), workspace=tmp_path, resume=True).step == 256


def test_the_learning_rate_of_an_agent_is_changed_from_the_next_rollout_on() -> None:
    rates: list[tuple[int, float]] = []

    class Freeze(Extension):
        trigger = EverySteps(128)

        def run(self, loop: LoopView) -> None:
            loop.set_rate_factor(loop.step, 0.5 if loop.step < 256 else 0.0)
            rates.append((loop.step, loop.learning_rate))

    frozen = train(job(), extensions=[Freeze()])
    assert rates == [(128, 0.001), (256, 0.0), (384, 0.0)]
    earlier = train(job("", "train_steps=256"), extensions=[Freeze()])
    assert_same(frozen.params, earlier.params)


@pytest.mark.ci
def test_agents_are_searched_and_submitted(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        run = dsinga.submit(job(), client)
        rates = {"updater.learning_rate.base_lr": [0.0, 0.002]}
        found = dsinga.search(job(), rates, client, workspace=tmp_path, progress=False)
        result = run.result(60)
        with pytest.raises(UserError, match="there is no metric 'val/loss'; .* are test/episode_return"):
            dsinga.search(job(), rates, client, monitor="val/loss", progress=False)
    assert found.monitor == "test/episode_return"
    assert [row["state"] for row in found] == ["finished", "finished"]
    second = found.histories[1].phase("test")
    assert [row["episode_return"] for row in second] == [row["episode_return"] for row in result.history.phase("test")]
    assert isinstance(found.best_result, rl.AgentResult)
    again = dsinga.search(job(), rates, workspace=tmp_path, resume=True, progress=False)
    assert isinstance(again.best_result, rl.AgentResult)
    assert_same(again.best_result.agent.algorithm.params, found.best_result.params)


def test_worker_groups_are_evaluated_and_stopped() -> None:
    groups = "cluster { nworkers_per_group: 2 }"
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster, set_as_default=False) as client:
            result = dsinga.train(job(groups, "reinforcement.stop_return=1"), client, progress=False)
    assert result.step == 128
    assert [row["phase"] for row in result.history] == ["train", "test"]
    assert "of an evaluation has reached 1" in repr(result)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extension { type: kEarlyStopping monitor: 'nothing/there' }", r"monitor: 'nothing/there' must be a phase"),
        ("extension { type: kEarlyStopping monitor: 'val/loss' }", "phase kVal; an agent is evaluated in phase test"),
        ("extension { type: kEarlyStopping monitor: 'train/lss' }", "metric 'train/lss' .*did you mean 'train/loss'"),
        ("extension { type: kKeepBest monitor: 'test/loss' }", "no metric 'test/loss' .*there are test/episode_return"),
        ("epochs: 2", "epochs has no effect on a job with reinforcement .*: it learns from an environment"),
        ("validate_freq: 9", "validate_freq has no effect .* set test_freq; leave it out"),
    ],
)
def test_what_a_job_cannot_ask_of_an_agent_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.conf"
    path.write_text(TEXT + text)
    line = len(TEXT.splitlines()) + 1
    for face in (dsinga.train, rl.train):
        with pytest.raises(UserError, match=rf"agent\.conf:{line}: .*{message}"):
            face(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": (np.zeros((2, 4)), np.zeros(2))}, "data has no effect .* it learns from an environment"),
        ({"epochs": 2}, "epochs has no effect .* set train_steps; leave epochs out"),
        ({"grain": "graph"}, "grain has no effect .* no Dask tasks"),
        ({"retry": True, "workspace": "w"}, "retry has no effect .* train again with"),
        ({"resources": {"GPU": 1}}, "resources has no effect"),
    ],
)
def test_options_without_a_meaning_for_an_agent_are_refused(options: dict[str, Any], message: str) -> None:
    refused(lambda: train(job(), **options), message)


def test_an_agent_in_place_of_an_environment_is_refused() -> None:
    agent = rl.Agent.__new__(rl.Agent)
    refused(lambda: rl.train("CartPole-v1", agent, steps=9), r"the agent comes first: rl.train\(agent, 'CartPole-v1', ")  # type: ignore[arg-type]


def test_params_begin_an_agent_that_learns_from_rollouts(tmp_path: Path) -> None:
    earlier = train(job(), workspace=tmp_path)
    frozen = job("", "updater.learning_rate.base_lr=0")
    begun = train(frozen, params=earlier.params)
    assert_same(begun.params, earlier.params)
    x = nn.Input(shape=4, name="observation")
    spaces = rl.make_environments("CartPole-v1", 1).spaces
    dqn = rl.Agent(rl.DQN(rl.Model(nn.Model(x, [nn.Dense(2, name="policy")(x)])), spaces))
    with pytest.raises(UserError, match="step384 does not fit the job: it has no param"):
        rl.train(dqn, "CartPole-v1", steps=2000, seed=1, resume=tmp_path / "checkpoint" / "step384", progress=False)


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    saved = train(job("", "train_steps=64")).agent.save(tmp_path / "saved")
    refused(lambda: train(job(), resume=saved), "no checkpoint of rl.train; agent.restore reads those of agent.save")
    agent = 'reinforcement { environment: "CartPole-v1" algorithm: kDQN }\nupdater { type: kSGD\nema_conf { } }'
    with pytest.raises(UserError, match="job.conf:3: ema_conf has no effect on an agent"):
        dsinga.train(dsinga.loads(f"train_steps: 9 {agent}", "job.conf"), progress=False)


@pytest.mark.parametrize(
    ("kind", "base", "imports"),
    [
        ("learning_algorithm", "rl.Algorithm", "from dsinga import rl"),
        ("environment", "gymnasium.Env", "import gymnasium"),
    ],
)
def test_algorithms_and_environments_are_refused_where_they_are_defined(tmp_path, kind, base, imports) -> None:
    check_definitions(tmp_path, kind, base, imports)
