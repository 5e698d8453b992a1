"""Measures an agent by episodes with its best actions: returns, lengths, and pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from dsinga.base.arguments import check_whole
from dsinga.base.error_frames import public
from dsinga.base.errors import RunError, UserError
from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.environments.environment_loop import EnvironmentLoop
from dsinga.rl.environments.registered import Environment, make_environments, make_rendering_environment
from dsinga.rl.environments.vector_environment import VectorEnvironment
from dsinga.rl.experience import Episode, EpisodeStatistics

# The number of an evaluation's first environment: training with the same seed has other episodes.
FIRST_ENVIRONMENT = 1 << 32
MOST_ENVIRONMENTS = 32
LONGEST_EPISODE = 1_000_000  # steps


class Policy(Protocol):
    """Interface of an object that chooses actions, such as an agent or an algorithm."""

    @property
    def predict(self) -> Callable[..., Any]:
        """A method that returns the best actions for observations (N, ...)."""


class BestActions:
    """Chooses an agent's best actions in ``count`` environments, and carries any hidden states."""

    def __init__(self, agent: Policy, count: int):
        self._predict = agent.predict
        self._hidden = agent.hidden_states(count) if isinstance(agent, Agent | Algorithm) else None

    def __call__(self, observations: np.ndarray) -> Any:
        """Return the best actions for observations (N, ...)."""
        return self._predict(observations) if self._hidden is None else self._predict(observations, self._hidden)

    def end(self, ended: np.ndarray) -> None:
        """Reset the hidden states of environments with ended episodes."""
        if self._hidden is not None:
            self._hidden.reset(ended)


class EvaluatedEpisodes(NamedTuple):
    """The returns (n,) float64 and lengths (n,) int64 of n evaluated episodes."""

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean_return(self) -> float:
        """The mean return of the episodes."""
        return float(self.returns.mean())

    def summary(self) -> dict[str, float]:
        """Return the mean ``episode_return`` and ``episode_length``, as a row of metrics."""
        return {"episode_return": self.mean_return, "episode_length": float(self.lengths.mean())}

    def __str__(self) -> str:
        return (
            f"mean return {self.mean_return:.4g} (standard deviation {self.returns.std():.3g}) over "
            f"{len(self.returns)} episodes of {self.lengths.mean():.4g} steps on average"
        )


@public
def evaluate(
    agent: Policy, environment: Environment, episodes: int = 100, *, seed: int = 0, **settings: Any
) -> EvaluatedEpisodes:
    """Let an agent play episodes with its best actions; return their returns and lengths.

    Each environment plays a fixed number of episodes, because the first to end would be short ones.

    Args:
        agent: an agent or an algorithm; its method ``predict`` is called.
        environment: as for :func:`dsinga.rl.make_environments`.
        episodes: how many episodes.
        seed: determines the random numbers, which differ from training with the same seed.
        settings: further arguments of the environment.

    Raises UserError as :func:`dsinga.rl.make_environments`; RunError if an environment fails, or an episode exceeds
    :data:`LONGEST_EPISODE` steps.
    """
    check_whole("the number of episodes", episodes, 1)
    if not hasattr(agent, "predict"):
        remedy = "give its agent" if hasattr(agent, "agent") else "its method predict chooses actions"
        raise UserError(f"an evaluation takes an agent or an algorithm, not {agent!r}; {remedy}")
    count = min(episodes, MOST_ENVIRONMENTS)
    environments = make_environments(environment, count, seed=seed, first=FIRST_ENVIRONMENT, **settings)
    if isinstance(agent, Agent):
        agent.check_environments(environments)
    statistics = EpisodeStatistics(count)
    missing = [episodes // count + (i < episodes % count) for i in range(count)]
    ended: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    choose = BestActions(agent, count)
    steps = 0  # since an episode that counts has ended
    try:
        observations = environments.reset()
        while any(missing):
            step = environments.step(choose(observations))
            choose.end(step.ended)
            observations = step.observations
            steps += 1
            for episode in statistics.add(step):
                if missing[episode.environment]:
                    missing[episode.environment] -= 1
                    ended[episode.environment].append((episode.total_reward, episode.length))
                    steps = 0
            check_length(environments, steps)
    finally:
        environments.close()
    returns, lengths = zip(*(pair for pairs in ended for pair in pairs), strict=True)
    return EvaluatedEpisodes(np.array(returns), np.array(lengths))


def check_length(environments: VectorEnvironment, steps: int) -> None:
    """Raise RunError if an episode has reached LONGEST_EPISODE steps, because it may never end."""
    if steps >= LONGEST_EPISODE:
        raise RunError(
            f"an episode of {environments.name!r} did not end within {LONGEST_EPISODE} steps; give the environment a "
            "time limit, such as gymnasium.wrappers.TimeLimit"
        )


LONGEST_RECORDING = 2000  # steps; then the recording ends
MOST_FRAMES = 250  # frames of a GIF at most: longer episodes keep every second frame, or every third, ...
WIDTH = 300  # pixels of a frame at most
STRIP_FRAMES, STRIP_COLUMNS = 8, 4
STRIP_GAP = 2  # pixels
FRAMES_PER_SECOND = 30  # if the environment names no speed


class RecordedEnvironment:
    """Wraps an environment to keep a picture of each step of its first episode."""

    def __init__(self, name: str, environment: Any):
        self._name, self._environment = name, environment
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self.frames: list[np.ndarray] = []
        self._episodes = 0

    def reset(self, *, seed: int) -> Any:
        """Reset the environment; at the first reset, keep its picture."""
        result = self._environment.reset(seed=seed)
        self._episodes += 1
        self._render()
        return result

    def step(self, action: Any) -> Any:
        """Step the environment and keep its picture."""
        result = self._environment.step(action)
        self._render()
        return result

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if hasattr(self._environment, "close"):
            self._environment.close()

    def _render(self) -> None:
        if self._episodes != 1:
            return
        try:
            frame = self._environment.render()
        except Exception as error:
            remedy = "" if type(error).__name__ == "DependencyNotInstalled" else f"{type(error).__name__}: "
            raise UserError(f"the environment {self._name!r} cannot render: {remedy}{error}") from error
        array = np.asarray(frame)
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
            what = type(frame).__name__ if array.dtype == object else f"an array {array.shape} of {array.dtype}"
            raise UserError(
                f"the environment {self._name!r} does not render pictures: render() returned {what}, not an array "
                "(height, width, 3) of uint8"
            )
        self.frames.append(array)


@public
def record_episode(
    agent: Policy, environment: Environment, path: str | os.PathLike[str], *, seed: int = 0, **settings: Any
) -> Episode:
    """Write an episode with an agent's best actions as pictures; return its return and length.

    Args:
        agent: an agent or an algorithm; its method ``predict`` is called.
        environment: as for :func:`dsinga.rl.make_environments`; it must render arrays.
        path: the file: ``.gif`` for an animation, ``.png`` for :data:`STRIP_FRAMES` frames in rows.
        seed: selects the episode, as in :func:`dsinga.rl.evaluate`.
        settings: further arguments of the environment.

    To render CartPole, ``pip install 'gymnasium[classic-control]'``. Your own environment needs a ``render`` that
    returns arrays (height, width, 3) uint8. At most :data:`LONGEST_RECORDING` steps are recorded.

    Raises UserError if the environment renders no pictures, Pillow is not installed, or the file has another ending;
    RunError if it cannot be written.
    """
    file = Path(path)
    if file.suffix.lower() not in (".gif", ".png"):
        raise UserError(f"{file} must end in .gif, for an animation, or .png, for a strip of frames")
    _pillow()
    # Pictures need no screen; without one, SDL would complain on standard error.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    name, single = make_rendering_environment(environment, **settings)
    recorded = RecordedEnvironment(name, single)
    loop = EnvironmentLoop(name, lambda: recorded, 1, seed, FIRST_ENVIRONMENT)
    try:
        episode = _run_episode(agent, loop)
        metadata = getattr(single, "metadata", None) or {}
        fps = float(metadata.get("render_fps") or FRAMES_PER_SECOND)
    finally:
        loop.close()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix.lower() == ".gif":
            write_gif(recorded.frames, file, fps)
        else:
            write_strip(recorded.frames, file)
    except OSError as error:
        raise RunError(f"the pictures cannot be written to {file}: {error}") from error
    return episode


def write_gif(frames: list[np.ndarray], path: Path, fps: float) -> None:
    """Write frames (height, width, 3) uint8 as a GIF of the original duration, with at most MOST_FRAMES."""
    every = -(-len(frames) // MOST_FRAMES)
    images = [_image(frame) for frame in [*frames[:-1:every], frames[-1]]]
    # Browsers show frames of less than 20 ms slowly.
    duration = max(20, round(1000 * every / fps))
    images[0].save(path, save_all=True, append_images=images[1:], duration=duration, loop=0)


def write_strip(frames: list[np.ndarray], path: Path) -> None:
    """Write STRIP_FRAMES evenly spaced frames, with first and last, as one PNG."""
    numbers = np.linspace(0, len(frames) - 1, min(STRIP_FRAMES, len(frames))).round().astype(int)
    images = [_image(frames[number]) for number in numbers]
    width, height = images[0].size
    columns = min(STRIP_COLUMNS, len(images))
    sizes = (columns, width), (-(-len(images) // columns), height)
    strip = _pillow().new("RGB", tuple(count * (size + STRIP_GAP) - STRIP_GAP for count, size in sizes), "white")
    for i, image in enumerate(images):
        strip.paste(image, (i % columns * (width + STRIP_GAP), i // columns * (height + STRIP_GAP)))
    strip.save(path)


def _run_episode(agent: Policy, loop: EnvironmentLoop) -> Episode:
    observations, total, length, has_ended = loop.reset(), 0.0, 0, False
    choose = BestActions(agent, 1)
    while length < LONGEST_RECORDING and not has_ended:
        step = loop.step(choose(observations))
        observations, total, has_ended = step.observations, total + float(step.rewards[0]), len(step.ended) > 0
        length += 1
    return Episode(total, length, 0)


def _image(frame: np.ndarray) -> Any:
    image = _pillow().fromarray(np.ascontiguousarray(frame))
    if image.width > WIDTH:
        image = image.resize((WIDTH, max(1, round(image.height * WIDTH / image.width))))
    return image


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UserError("recording an episode needs Pillow: pip install 'dsinga[images]'") from None
    return Image
