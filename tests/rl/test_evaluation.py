"""Evaluations count the right episodes; pictures of an episode are what the environment rendered."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

import dsinga
from dsinga import nn, rl
from dsinga.base.errors import RunError, UserError
from dsinga.job import Job
from dsinga.rl import evaluation
from dsinga.rl import evaluation as rendering
from dsinga.rl.collecting import Collector
from dsinga.rl.environments.registered import make_environments
from dsinga.rl.experience import LATEST, EpisodeStatistics
from tests.support.refusals import refused


class Lasting:
    """An episode of environment k lasts k + 1 steps; the reward is the action."""

    observation_space = rl.box((1,))
    action_space = rl.DiscreteSpace(4)
    made = 0

    def __init__(self):
        self.number, Lasting.made = Lasting.made, Lasting.made + 1

    def reset(self, *, seed=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(action), self.steps > self.number, False, {}


class Three:
    """Always takes action 3."""

    def predict(self, observations):
        return np.full(len(observations), 3)


@pytest.mark.parametrize(("episodes", "lengths"), [(3, [1, 2, 3]), (6, [1, 1, 2, 2, 3, 4]), (1, [1])])
def test_each_environment_contributes_a_number_of_episodes_that_is_fixed(episodes, lengths, monkeypatch):
    monkeypatch.setattr(evaluation, "MOST_ENVIRONMENTS", 4)
    Lasting.made = 0
    result = rl.evaluate(Three(), Lasting, episodes)
    np.testing.assert_array_equal(result.lengths, lengths)
    np.testing.assert_array_equal(result.returns, 3 * result.lengths)
    assert result.summary() == {"episode_return": 3 * np.mean(lengths), "episode_length": np.mean(lengths)}


def test_an_evaluation_repeats_by_its_seed():
    class Alternating:
        def predict(self, observations):
            return (observations[:, 2] > 0).astype(int)

    once, again = (rl.evaluate(Alternating(), "CartPole-v1", 20, seed=1) for _ in range(2))
    np.testing.assert_array_equal(once.returns, again.returns)
    assert not np.array_equal(once.returns, rl.evaluate(Alternating(), "CartPole-v1", 20, seed=2).returns)
    assert len(once.returns) == 20
    assert np.all(once.returns == once.lengths)
    assert str(once).startswith(f"mean return {once.mean_return:.4g} (standard deviation")


def test_an_episode_without_end_is_refused(monkeypatch):
    class Endless(Lasting):
        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {}

    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 20)
    refused(lambda: rl.evaluate(Three(), Endless, 2), "'Endless'", "give the environment", error=RunError)
    x = nn.Input(shape=1)
    evolving = rl.Agent(rl.ES(rl.Model(nn.Model(x, [nn.Dense(4)(x)])), rl.make_environments(Endless, 1).spaces))
    with pytest.raises(RunError, match="of 'Endless' did not end within 20 steps; give the environment a time limit"):
        rl.train(evolving, Endless, steps=9, environments=1, progress=False)
    refused(lambda: rl.evaluate(Three(), Lasting, 0), "the number of episodes is 0; give a whole number of at least 1")


class Painted(Lasting):
    """Renders a picture whose colour is the number of the step; lasts 20 steps."""

    metadata = {"render_fps": 10}

    def __init__(self, size=(20, 40), render_mode=None):
        super().__init__()
        self.number, self.size, self.render_mode = 19, size, render_mode

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((*self.size, 3), self.steps * 10, np.uint8)


@pytest.mark.parametrize(
    ("most", "size", "expected"),
    [(rendering.MOST_FRAMES, (20, 40), (21, (40, 20), 100)), (10, (400, 600), (8, (300, 200), 300))],
)
def test_a_gif_has_a_frame_of_each_step_or_some_of_a_long_episode(tmp_path, monkeypatch, most, size, expected):
    monkeypatch.setattr(rendering, "MOST_FRAMES", most)
    episode = rl.record_episode(Three(), Painted, tmp_path / "new" / "episode.gif", size=size)
    assert (episode.total_reward, episode.length) == (60, 20)
    with Image.open(tmp_path / "new" / "episode.gif") as image:
        assert (image.n_frames, image.size, image.info["duration"]) == expected
        image.seek(image.n_frames - 1)
        assert image.convert("RGB").getpixel((5, 5)) == (200, 200, 200)


def test_a_strip_has_frames_from_the_first_to_the_last(tmp_path):
    rl.record_episode(Three(), Painted, tmp_path / "episode.png")
    with Image.open(tmp_path / "episode.png") as image:
        assert image.size == (4 * 42 - 2, 2 * 22 - 2)
        colours = [image.getpixel((42 * (i % 4) + 20, 22 * (i // 4) + 10))[0] for i in range(8)]
        assert image.getpixel((41, 10)) == (255, 255, 255)
    assert colours == [0, 30, 60, 90, 110, 140, 170, 200]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=f"the pictures cannot be written to {tmp_path}/file/episode.gif: "):
        rl.record_episode(Three(), Painted, tmp_path / "file" / "episode.gif")


def test_a_recording_of_an_episode_without_end_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "LONGEST_RECORDING", 4)
    assert rl.record_episode(Three(), Painted, tmp_path / "episode.gif").length == 4


class Text(gymnasium.Env):
    """Renders text only."""

    metadata = {"render_modes": ["ansi"]}
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(4)

    def __init__(self, render_mode=None):
        pass


def test_an_environment_that_renders_no_pictures_is_refused(tmp_path):
    path = tmp_path / "episode.gif"
    gymnasium.register("Text-test-v0", entry_point=Text)
    refused(lambda: rl.record_episode(Three(), "Text-test-v0", path), "'Text-test-v0'", "ansi, without rgb")
    refused(lambda: rl.record_episode(Three(), Lasting, path), "'Lasting' cannot render: AttributeError")
    Lasting.render = lambda self: None
    try:
        refused(lambda: rl.record_episode(Three(), Lasting, path), r"not an array \(height, width, 3\) of uint8")
    finally:
        del Lasting.render
    refused(lambda: rl.record_episode(Three(), Painted, tmp_path / "episode.mp4"), r".gif, for an animation, or .png")
    assert not path.exists()


def test_a_missing_package_of_pictures_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygame", None)
    with pytest.raises(UserError, match=r"'CartPole-v1' cannot render: pygame is not installed.*gymnasium\["):
        rl.record_episode(Three(), "CartPole-v1", tmp_path / "episode.gif")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    refused(lambda: dsinga.rl.record_episode(Three(), Painted, tmp_path / "episode.gif"), r"'dsinga\[images\]'")


# Rollouts and statistics of episodes, beside what the environment is known to do.
class Rising:
    """The observation is the number of steps; ends by itself after 3 steps, or is cut off after 2, by turns."""

    observation_space = rl.box((1,))
    action_space = rl.DiscreteSpace(10)

    def __init__(self):
        self.episodes = 0

    def reset(self, *, seed=None):
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        terminated, truncated = self.steps == 3, self.steps == 2 and self.episodes % 2 == 0
        return np.full(1, self.steps, np.float32), float(action), terminated, truncated, {}


def sample(observations):
    """The action is one more than the observation."""
    actions = observations[:, 0].astype(np.int64) + 1
    return rl.Sampled(actions, {"value": observations[:, 0] * 2, "scores": np.tile(observations, 4)})


def test_a_rollout_by_hand():
    collector = Collector(make_environments(Rising, 2))
    rollout = collector.rollout(sample, 7, values=lambda observations: observations[:, 0] + 100)
    column = [0, 1, 2, 0, 1, 0, 1]
    np.testing.assert_array_equal(rollout.observations, np.stack([column, column], 1)[..., None])
    np.testing.assert_array_equal(rollout.actions[:, 0], np.add(column, 1))
    np.testing.assert_array_equal(rollout.rewards[:, 1], np.add(column, 1))
    np.testing.assert_array_equal(rollout.terminated[:, 0], [0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(rollout.truncated[:, 0], [0, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(rollout.bootstrap[:, 1], [0, 0, 0, 0, 102, 0, 0])
    np.testing.assert_array_equal(rollout.last_observations, [[2], [2]])
    np.testing.assert_array_equal(rollout.extras["value"][:, 0], np.multiply(column, 2))
    assert rollout.extras["scores"].shape == (7, 2, 4)
    assert rollout.steps == 14
    assert rollout.actions.dtype == np.int64
    assert rollout.rewards.dtype == rollout.bootstrap.dtype == rollout.extras["value"].dtype == np.float32
    assert [(episode.total_reward, episode.length, episode.environment) for episode in collector.ended] == [
        (6, 3, 0),
        (6, 3, 1),
        (3, 2, 0),
        (3, 2, 1),
    ]


def test_the_next_rollout_goes_on_where_the_last_one_ended():
    together = Collector(make_environments(Rising, 1)).rollout(sample, 8)
    collector = Collector(make_environments(Rising, 1))
    apart = [collector.rollout(sample, steps) for steps in (3, 5)]
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "bootstrap"):
        parts = np.concatenate([getattr(rollout, name) for rollout in apart])
        np.testing.assert_array_equal(parts, getattr(together, name))
    np.testing.assert_array_equal(apart[0].last_observations, apart[1].observations[0])
    assert not together.bootstrap.any()


def test_a_memory_is_given_each_step():
    class Kept(list):
        def add(self, observations, actions, step):
            self.append((observations[0, 0], actions[0], step.next_observations()[0, 0]))

    memory = Kept()
    collector = Collector(make_environments(Rising, 1))
    collector.fill(memory, sample, 5)
    assert memory == [(0, 1, 1), (1, 2, 2), (2, 3, 3), (0, 1, 1), (1, 2, 2)]
    assert len(collector.ended) == 2


def test_statistics_are_means_over_the_latest_episodes():
    collector = Collector(make_environments(Rising, 1))
    statistics = collector.statistics
    assert statistics.summary() == {}
    collector.rollout(sample, 3)
    assert statistics.summary() == {"episode_return": 6, "episode_length": 3}
    collector.rollout(sample, 2)
    assert statistics.summary() == {"episode_return": 4.5, "episode_length": 2.5}
    collector.rollout(sample, 5 * LATEST)
    assert statistics.episodes == 2 * LATEST + 2
    assert len(statistics.latest) == LATEST
    assert statistics.summary() == {"episode_return": 4.5, "episode_length": 2.5}
    again = EpisodeStatistics(1)
    again.restore(statistics.state())
    assert again.state().keys() == statistics.state().keys()
    assert again.latest == statistics.latest


# Whether the jobs of datasets/ learn what they are for, with several seeds: slow.
DATASETS = Path(__file__).parents[2] / "datasets"


def load(path: str, *changes: str) -> Job:
    return dsinga.load(DATASETS / f"{path}.conf", changes)


def returns(job: Job) -> Any:
    """Train a job and return the mean returns of its evaluations by the best actions."""
    return rl.train(job, progress=False).history.phase("test")[:, "episode_return"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("path", ["cartpole/ppo", "cartpole/a2c", "cartpole/dqn", "cartpole/dqn double"])
def test_a_job_reaches_the_return_that_counts_as_solved(path: str, seed: int) -> None:
    path, _, double = path.partition(" ")
    changes = [f"reinforcement.dqn_conf.double={str(bool(double)).lower()}"] if path.endswith("dqn") else []
    assert returns(load(path, f"seed={seed}", *changes))[-1] >= 475


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
def test_dqn_balances_the_pole_with_four_actors(seed: int) -> None:
    changes = "num_actors=4", "num_environments=1", "rollout_steps=32", "max_staleness=3", "dqn_conf.last_epsilon=0.2"
    job = load("cartpole/dqn", f"seed={seed}", *(f"reinforcement.{change}" for change in changes))
    agent = rl.train(job, progress=False).agent
    assert rl.evaluate(agent, "CartPole-v1", 100, seed=seed + 1000).mean_return >= 475


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "seeds", "least"),
    [
        ("acrobot/ppo", [None], -90),
        ("pendulum/ddpg", [1, 2, 3], -200),
        ("pendulum/td3", [1, 2, 3], -200),
        ("mountaincar/ddpg", [1], 90),  # by correlated noise
        ("mountaincar/ddpg", [2], 90),
        ("mountaincar/ddpg", [3], 90),
    ],
)
def test_other_tasks_are_solved_in_the_median_of_seeds(path: str, seeds: list[Any], least: float) -> None:
    ends = [returns(load(path, *([] if seed is None else [f"seed={seed}"])))[-1] for seed in seeds]
    assert np.median(ends) >= least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings", "least"),
    [
        ("kREINFORCE", ["rollout_steps=500", "num_environments=8"], 300),
        ("kIMPALA", ["rollout_steps=20", "num_environments=16"], 300),
        ("kES", ["num_environments=4"], 200),
    ],
)
def test_other_algorithms_learn_to_balance(algorithm: str, settings: list[str], least: float) -> None:
    changes = [f"reinforcement.{setting}" for setting in (f"algorithm={algorithm}", *settings)]
    job = load("cartpole/ppo", *changes, "train_steps=200000", "test_freq=25000")
    assert job.reinforcement is not None
    job.reinforcement.ppo_conf = None
    assert max(returns(job)) >= least
