"""Evaluations count the right episodes; pictures of an episode are what the environment rendered."""

import gymnasium
import numpy as np
import pytest
from PIL import Image

import dsinga
from dsinga import nn, rl
from dsinga.base.errors import RunError, UserError
from dsinga.rl import evaluation
from dsinga.rl import evaluation as rendering
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
    """With fewer frames its duration is the same."""
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
