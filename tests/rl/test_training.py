"""Runs of rl.train: rows, evaluations, checkpoints, resuming with the same bits, jobs, and messages about mistakes."""

import inspect
import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

import dsinga
from dsinga import nn, rl
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group
from dsinga.job import Settings, setting
from dsinga.job.limits import NonNegative
from dsinga.rl.from_job import agent_of as agent_of_job
from tests.support.rl_cases import actor_critic

SPACES = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))
JOB = Path(__file__).parents[2] / "datasets" / "cartpole" / "ppo.conf"


def agent_of(algorithm: type[Any] = rl.PPO, seed: int = 0, **settings: Any) -> rl.Agent:
    return rl.Agent(algorithm(actor_critic(), SPACES, seed=seed, **settings), seed=seed)


def same_bits(first: rl.AgentResult, second: rl.AgentResult) -> bool:
    return all(first.params[name].tobytes() == value.tobytes() for name, value in second.params.items())


def train(agent: rl.Agent | None = None, **settings: Any) -> rl.AgentResult:
    settings = {"steps": 384, "environments": 4, "rollout_steps": 32, "evaluation_episodes": 2, **settings}
    return rl.train(agent or agent_of(), "CartPole-v1", progress=False, **settings)


def test_a_run_writes_rows_and_checkpoints(tmp_path: Path) -> None:
    result = train(workspace=tmp_path, log_every=128, evaluate_every=256, checkpoint_every=128, checkpoints_kept=2)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["phase"]) for row in rows] == [
        (128, "train"), (256, "train"), (256, "test"), (384, "train"), (384, "test"),
    ]  # fmt: skip
    assert rows[3].keys() >= {"loss", "episode_return", "episode_length", "env_steps_per_second", "kl", "time"}
    assert rows[4].keys() == {"step", "phase", "time", "episode_return", "episode_length"}
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == ["step256", "step384"]
    assert result.history[:, "step"] == [row["step"] for row in rows]
    assert repr(result).startswith("<Result of PPO after 384 steps: train, mean return")
    assert ">episode_return<" in result._repr_html_()
    assert ">loss<" in result._repr_html_()


@pytest.mark.parametrize("algorithm", [rl.PPO, rl.REINFORCE, rl.IMPALA, rl.ES])
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(algorithm: type[Any], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"environments": 8}
    fields = {"population": 2} if algorithm is rl.ES else {}
    if algorithm is rl.ES:
        settings["steps"] = 1500
    unbroken = train(agent_of(algorithm, **fields), workspace=tmp_path, checkpoint_every=128, **settings)
    assert same_bits(unbroken, train(agent_of(algorithm, **fields), **settings))
    assert not same_bits(unbroken, train(agent_of(algorithm, seed=1, **fields), **settings))
    first = min((tmp_path / "checkpoint").iterdir(), key=lambda path: int(path.name.removeprefix("step")))
    assert first.name != f"step{unbroken.step}"
    for _ in range(2):  # the second time in a workspace that has gone on
        resumed = train(agent_of(algorithm, **fields), workspace=tmp_path, resume=first, **settings)
        assert same_bits(unbroken, resumed)
        assert resumed.history[:, ("step", "phase")] == unbroken.history[:, ("step", "phase")]
        np.testing.assert_equal(resumed.history[-1, "episode_return"], unbroken.history[-1, "episode_return"])


def test_a_run_ends_when_an_evaluation_is_good_enough(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"evaluate_every": 128, "log_every": 1000}
    assert train(workspace=tmp_path, stop_return=1.0, **settings).step == 128
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["phase"]) for row in rows] == [(128, "test"), (128, "train")]
    assert (tmp_path / "checkpoint" / "step128").is_dir()
    assert train(stop_return=501.0, **settings).step == 384


def test_a_run_of_another_layout_is_not_resumed(tmp_path: Path) -> None:
    class Other:
        observation_space, action_space = SPACES
        step = None

        def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
            return np.zeros(4, np.float32), {}

    train(steps=64, environments=8, workspace=tmp_path)
    again: dict[str, Any] = {"steps": 128, "workspace": tmp_path, "resume": True, "progress": False}
    with pytest.raises(UserError, match="environments 8, this one.*resume with the"):
        rl.train(agent_of(), "CartPole-v1", environments=4, **again)
    with pytest.raises(UserError, match="the saved run had environment 'CartPole-v1', this one has 'Other'"):
        rl.train(agent_of(), Other, environments=8, **again)


@pytest.mark.parametrize(
    ("command", "option", "value", "text"),
    [
        ("train", "--grain", "graph", "the iterations of an agent are no Dask tasks"),
        (
            *("train", "--scheduler", "tcp://127.0.0.1:1"),
            "it is trained in this process, unless num_actors or several workers are set",
        ),
        ("test", "--phase", "val", "it is evaluated in its environment"),
        ("test", "--scheduler", "tcp://127.0.0.1:1", "it is evaluated in this process"),
    ],
)
def test_options_without_effect_on_an_agent_are_refused(
    command: str, option: str, value: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(main_group, [command, str(JOB), option, value])
    assert str(refused.exception) == (
        f"{option} has no effect on a job with reinforcement {{ }}: {text}; leave {option} out"
    )
    assert isinstance(refused.exception, UserError)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_evaluated_and_a_net_shown_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--set", "train_steps=1024", "--set", "reinforcement.evaluation_episodes=3", "--set", "checkpoint_freq=0"]
    trained = CliRunner().invoke(main_group, ["train", str(JOB), *short])
    assert trained.exit_code == 0, trained.output
    assert "Result of PPO after 1024 steps" in trained.output
    tested = CliRunner().invoke(main_group, ["test", str(JOB), *short])
    assert (
        json.loads(tested.stdout)["episode_return"]
        == rl.train(JOB, workspace="again", steps=1024, progress=False, **{"evaluation_episodes": 3}).history[-1][
            "episode_return"
        ]
    )
    shown = CliRunner().invoke(main_group, ["show", str(JOB)])
    assert "kPPOLoss" in shown.output
    refused = CliRunner().invoke(main_group, ["plan", str(JOB)])
    assert "learns from an environment, not from records: use dsinga.train(job)" in str(refused.exception)


@dsinga.register("learning_algorithm", "Greedy")
class Greedy(rl.Algorithm):
    """Takes the best action of a head that it never learns."""

    class Conf(Settings):
        """Settings of Greedy."""

        bonus: NonNegative = setting(0.5, "what is added to the loss that it reports")

    def predict(self, observations: np.ndarray) -> np.ndarray:
        return self.heads(observations)[0].argmax(axis=1)

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> rl.Sampled:
        return rl.Sampled(self.predict(observations), {})

    def learn(self, batch: rl.Rollout) -> dict[str, float]:
        return {"loss": self.settings.bonus}


def test_a_users_algorithm_has_typed_settings_in_python_and_in_jobs() -> None:
    def job(settings: str) -> dsinga.Job:
        text = JOB.read_text(encoding="utf-8").replace("algorithm: kPPO", f'user_algorithm: "Greedy"\n{settings}')
        return dsinga.loads(text.replace("ppo_conf { epochs: 5 }", ""))

    assert agent_of(Greedy, bonus=2).algorithm.settings.bonus == 2
    assert inspect.signature(Greedy).parameters["bonus"].default == 0.5
    with pytest.raises(UserError, match="bonus is -1; give a number of at least 0"):
        agent_of(Greedy, bonus=-1)
    with pytest.raises(UserError, match="Greedy has no argument 'bonuss'; did you mean 'bonus'"):
        agent_of(Greedy, bonuss=1)
    assert agent_of_job(job("greedy_conf { bonus: 3 }"), SPACES).algorithm.settings.bonus == 3
    with pytest.raises(UserError, match=r"<string>:\d+: GreedyConf has no field 'bonis'; did you mean 'bonus'"):
        job("greedy_conf { bonis: 3 }")
    with pytest.raises(UserError, match=r"<string>:\d+: bonus must be at least 0, not -1"):
        (agent_job := job("greedy_conf { bonus: -1 }")).reinforcement.check(agent_job)
    with pytest.raises(UserError, match=r"ppo_conf has no effect on Greedy"):
        agent_of_job(job("ppo_conf { clip: 0.1 }"), SPACES)
    result = dsinga.train(job("greedy_conf { bonus: 3 }").replace(train_steps=2048, test_freq=0), progress=False)
    assert {row["loss"] for row in result.history if "loss" in row} == {3}


def refused(text: str, **settings: Any) -> None:
    with pytest.raises(UserError, match=text):
        train(**settings)


def test_the_critic_has_an_updater_of_its_own_in_a_job() -> None:
    job = dsinga.load(JOB.parents[1] / "pendulum" / "td3.conf", [
        "reinforcement.td3_conf.critic_updater.type=kSGD",
        "reinforcement.td3_conf.critic_updater.learning_rate.type=kFixed",
        "reinforcement.td3_conf.critic_updater.learning_rate.base_lr=0.25",
    ])  # fmt: skip
    spaces = rl.make_environments("Pendulum-v1", 1).spaces
    algorithm = agent_of_job(job, spaces).algorithm
    actor, critic = (net.job.updater for net in (algorithm.net, algorithm.critic_net))
    assert (critic.type.name, critic.learning_rate.base_lr) == ("kSGD", 0.25)
    assert actor.type.name == "kAdam"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"seed": None}, "seed is None; give a whole number of at least 0"),
        ({"steps": 1e3}, r"steps is 1000.0; give a whole number"),
        ({"num_envs": 2}, "rl.train has no argument 'num_envs'; use environments"),
        ({"replay": {"capacity": 5}}, "give dsinga.rl.ReplaySettings"),
        ({"stop_return": 9.0}, "stop_return is compared with .* evaluations: give evaluate_every"),
        ({"central_inference": True}, "central_inference is about actors: give actors"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any], text: str) -> None:
    refused(text, **settings)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: agent_of(gamma=0.9), "PPO has no argument 'gamma'; use discount"),
        (lambda: agent_of(epoch=2), "PPO has no argument 'epoch'; did you mean 'epochs'?"),
        (lambda: agent_of(rl.A2C, learning_rate=1.0), "A2C has no argument 'learning_rate'; give updater=dsinga.nn.A"),
        (lambda: agent_of(rl.TD3, tau=1.0), "TD3 has no argument 'tau'; use target_share"),
        (lambda: agent_of(rl.ES, zzz=1), "ES has no argument 'zzz'; it has model, spaces, "),
        (lambda: rl.PPO(), r"PPO: missing a required argument: 'model'; it is called as PPO\(model"),
        (lambda: rl.ReplaySettings(batch=1), "ReplaySettings has no argument 'batch'; did you mean 'batch_size'?"),
        (lambda: train(step=3), "rl.train has no argument 'step'; did you mean 'steps'?"),
    ],
)
def test_unknown_settings_are_named(make: Any, text: str) -> None:
    with pytest.raises(UserError, match=text.replace("?", r"\?")):
        make()


def test_a_memory_that_would_never_be_learnt_from_is_refused() -> None:
    x = nn.Input(shape=4, name="observation")
    agent = rl.Agent(rl.DQN(rl.Model(nn.Model(x, [nn.Dense(2)(x)])), SPACES))
    refused(r"learning begins after 1000 steps \(learn_after\), but the run has 384", agent=agent)
    refused("ES learns from environments in this process, not from actors", agent=agent_of(rl.ES), actors=2)
    replay = {"agent": agent, "actors": 2, "environments": 4}
    short = rl.ReplaySettings(learn_after=0, n_steps=9)
    small = rl.ReplaySettings(learn_after=0, capacity=31)
    refused(r"DQN learns from a replay.* central_inference out", replay=short, central_inference=True, **replay)
    refused(r"rollout of an actor has 32 steps, .* keeps 31 \(capacity\)", replay=small, rollout_steps=8, **replay)
    refused(r"transition of 9 steps \(n_steps\) is longer than .* of 8:", replay=short, rollout_steps=8, **replay)
    for settings, text in (
        ({"batch_size": 0}, "batch_size is 0; give a whole number of at least 1"),
        ({"learn_every": 0.5}, "learn_every is 0.5; give a whole number"),
        ({"discount": 2}, "discount is 2; give a number between 0 and 1"),
    ):
        with pytest.raises(UserError, match=text):
            rl.ReplaySettings(**settings)  # type: ignore[arg-type]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"takes an agent: give rl.Agent\(algorithm\), not PPO alone"):
        rl.train(agent_of().algorithm, "CartPole-v1", steps=9)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="replay_conf has no effect on kPPO"):
        rl.train(dsinga.load(JOB, ["reinforcement.replay_conf.capacity=9"]))
    groups = ["cluster.nworker_groups=2"]
    with pytest.raises(UserError, match="central_inference has no effect on worker groups"):
        rl.train(dsinga.load(JOB, [*groups, "reinforcement.num_actors=1", "reinforcement.central_inference=true"]))
    refused("evaluation_episodes is -1", evaluation_episodes=-1)
    refused("resuming needs a workspace", resume=True)
    refused("there is no checkpoint to resume from in", resume=True, workspace=tmp_path)
    with pytest.raises(UserError, match="needs an environment and the number of its steps"):
        rl.train(agent_of())
    with pytest.raises(UserError, match="must be in"):
        rl.train(dsinga.load(JOB, ["reinforcement.discount=1.5"]))
    with pytest.raises(UserError, match="a2c_conf has no effect on kPPO"):
        rl.train(dsinga.load(JOB, ["reinforcement.a2c_conf.decay=0.5"]))
    with pytest.raises(UserError, match="has no reinforcement"):
        rl.train(dsinga.loads("neuralnet { }"))


def cart_pole_with(act: Callable[[], object], at: int) -> type[Any]:
    """Return a class of CartPole that calls ``act`` during the step number ``at`` of all its environments."""
    steps = itertools.count(1)

    class Acting(gymnasium.Wrapper[Any, Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(gymnasium.make("CartPole-v1"))

        def step(self, action: Any) -> Any:
            if next(steps) == at:
                act()
            return super().step(action)

    return Acting


OPTIONS: dict[str, Any] = {"steps": 384, "environments": 4, "rollout_steps": 32, "progress": False}


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupted_run_goes_on_from_a_checkpoint_of_its_last_rollout(tmp_path: Path) -> None:
    environment = cart_pole_with(interrupt, 150)
    with pytest.raises(KeyboardInterrupt, match=r"256 steps were done; go on from .*step256 with resume=True"):
        rl.train(agent_of(), environment, workspace=tmp_path, **OPTIONS)
    resumed = rl.train(agent_of(), environment, workspace=tmp_path, resume=True, **OPTIONS)
    assert same_bits(resumed, rl.train(agent_of(), environment, **OPTIONS))
    with pytest.raises(KeyboardInterrupt):  # at once, since nothing is kept
        rl.train(agent_of(), cart_pole_with(interrupt, 1), **OPTIONS)
