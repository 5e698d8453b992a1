"""Agents of both kinds with every extension, by the loop of all runs."""

from pathlib import Path

import pytest

import dsinga
from dsinga.base.errors import UserError
from dsinga.job import Job
from tests.addons.trackers.test_extensions_contract import TRACKERS
from tests.cluster.runs.test_loop_products import EXTENSIONS, train
from tests.support.executed_pages import ROOT
from tests.support.small_job import assert_same

CUT = 8  # the step at which a run is cut, and at whose multiples it is tested
AGENT = """
train_steps: 24 disp_freq: 8 test_freq: 8 checkpoint_freq: 8
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.002 } }
neuralnet {
  layer { name: "observation" type: kRecordInput store_conf { shape: 4 } }
  layer { name: "fc" type: kInnerProduct srclayers: "observation" innerproduct_conf { num_output: 8 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "HEAD" type: kInnerProduct srclayers: "fc" innerproduct_conf { num_output: 2 }
    param { init { type: kUniformSqrtFanIn } } }
  VALUE
}
reinforcement { environment: "CartPole-v1" num_environments: 2 rollout_steps: 4 evaluation_episodes: 1 ALGORITHM }
"""
VALUE = """layer { name: "value" type: kInnerProduct srclayers: "fc" innerproduct_conf { num_output: 1 }
    param { init { type: kUniformSqrtFanIn } } }"""


def agent_job(algorithm: str, head: str, value: str = "") -> Job:
    return dsinga.loads(AGENT.replace("ALGORITHM", algorithm).replace("HEAD", head).replace("VALUE", value))


JOBS = {
    "agent of rollouts": agent_job("algorithm: kA2C", "policy", VALUE),
    "agent with a memory": agent_job(
        "algorithm: kDQN dqn_conf { target_every: 3 epsilon_steps: 20 } replay_conf { learn_after: 4 batch_size: 4 }",
        "values",
    ),
}
TD3 = [
    *("train_steps=24", "test_freq=8", "checkpoint_freq=8"),
    *("reinforcement.evaluation_episodes=1", "reinforcement.rollout_steps=4"),
    *("reinforcement.td3_conf.random_steps=4", "reinforcement.td3_conf.noise_correlation=0.9"),
    *(f"reinforcement.replay_conf.{field}" for field in ("learn_after=4", "batch_size=4", "prioritized=true")),
]
RESUMED = {**JOBS, "two critics": dsinga.load(ROOT / "datasets/pendulum/td3.conf", TD3)}
RETURN = "test/episode_return"
ALL = {**EXTENSIONS, **TRACKERS}


@pytest.mark.parametrize("text", ALL, ids=lambda text: text.split()[1])
@pytest.mark.parametrize("kind", JOBS)
def test_every_extension_holds_for_agents(kind: str, text: str, tmp_path: Path) -> None:
    ALL[text](train(JOBS[kind], None, tmp_path, text, RETURN), tmp_path)


@pytest.mark.parametrize("kind", RESUMED)
def test_an_agent_that_was_cut_and_resumed_is_the_unbroken_one(kind: str, tmp_path: Path) -> None:
    job = RESUMED[kind]
    whole = dsinga.train(job, workspace=tmp_path / "whole", progress=False)
    dsinga.train(job.replace(train_steps=CUT), workspace=tmp_path / "parts", progress=False)
    parts = dsinga.train(job, workspace=tmp_path / "parts", resume=True, progress=False)
    assert whole.step == parts.step
    assert_same(parts.params, whole.params)
    rows = [[{**row, "time": 0, "env_steps_per_second": 0} for row in result.history.phase("test")]
            for result in (whole, parts)]  # fmt: skip
    assert rows[0] == rows[1]


def test_an_agent_refuses_micro_batches() -> None:
    with pytest.raises(UserError, match="leave micro_batches out"):
        dsinga.train(JOBS["agent with a memory"].replace(micro_batches=2), progress=False)
