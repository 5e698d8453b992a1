"""Steps several environments of Gymnasium's interface together: single ones in a loop, or a vector environment."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, SupportsFloat

import numpy as np

from dsinga.base.errors import RunError, UserError
from dsinga.rl.environments.spaces import DiscreteSpace, Spaces, space_of
from dsinga.rl.environments.vector_environment import EnvironmentStep, VectorEnvironment, episode_seed

# Actions of longer episodes are dropped, so that an endless episode does not fill the memory.
LONGEST_REPLAY = 100_000

_NONE_ENDED = np.zeros(0, np.int64)


class EnvironmentLoop(VectorEnvironment):
    """Steps environments with Gymnasium's interface one after the other, as one vector environment.

    Each episode begins with ``reset(seed=...)``, seeded by the run's seed and the numbers of environment and episode.

    Args:
        create: returns a new environment; called ``count`` times.

    Raises UserError for unsupported spaces.
    """

    def __init__(self, name: str, create: Callable[[], Any], count: int, seed: int = 0, first: int = 0):
        environments = [create() for _ in range(count)]
        super().__init__(name, spaces_of(name, environments[0]), count, seed, first)
        self._environments = environments
        self._step_calls = [environment.step for environment in environments]
        self._episodes = [-1] * count
        self._starts = [0] * count  # the step of the run in which the current episode began
        self._actions: list[deque[Any]] = [deque(maxlen=LONGEST_REPLAY) for _ in environments]
        self._observations = self._empty()  # the last observations, to recognise a replay that differs
        self._no_finals = np.zeros((0, *self.spaces.observation.shape), self.spaces.observation.dtype)

    def reset(self) -> np.ndarray:
        """Begin each environment's next episode and return the observations (N, ...)."""
        observations = self._empty()
        self.steps = 0
        for i in range(self.count):
            observations[i] = self._begin_episode(i)
        self._observations = observations
        return observations.copy()

    def _step(self, actions: np.ndarray) -> EnvironmentStep:
        observations = self._empty()
        rewards, terminated, truncated, ended = [], [], [], []
        values = actions.tolist() if isinstance(self.spaces.action, DiscreteSpace) else list(actions)
        i, result = 0, None
        try:
            for i, action in enumerate(values):
                result = self._step_calls[i](action)
                observations[i], reward, is_terminated, is_truncated, _ = result
                rewards.append(float(reward))
                terminated.append(is_terminated)
                truncated.append(is_truncated)
                if is_terminated or is_truncated:
                    ended.append(i)
                else:
                    self._actions[i].append(action)
        except Exception as error:
            self._check_result(i, result)
            self._fail(i, f"in step {self.steps - self._starts[i] + 1}", error)
        if not self.steps:  # numpy would broadcast an observation of one number
            self._check_result(i, result)
        final_observations = observations[ended] if ended else self._no_finals
        for i in ended:
            observations[i] = self._begin_episode(i, self.steps + 1)
        self._observations = observations
        return EnvironmentStep(
            observations.copy(),
            np.array(rewards, np.float32),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            np.array(ended, np.int64) if ended else _NONE_ENDED,
            final_observations,
        )

    def state(self) -> dict[str, Any]:
        """Return each environment's episode number and actions so far, from which it is restored."""
        return {
            "episodes": list(self._episodes),
            "lengths": [self.steps - start for start in self._starts],
            "actions": {str(i): np.array(actions) for i, actions in enumerate(self._actions)},
            "observations": self._observations.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> np.ndarray:
        """Continue saved episodes by repeating their actions; return the observations (N, ...).

        If repeating fails, or an episode is too long, the environment begins the next one, with a warning.
        """
        if len(state["episodes"]) != self.count:
            raise UserError(
                f"the saved run had {len(state['episodes'])} environments {self.name!r}, this one has {self.count}; "
                "resume with the same number"
            )
        observations, lengths = np.array(state["observations"], self._observations.dtype), state["lengths"]
        self.steps = max(lengths)
        for i, (episode, length) in enumerate(zip(state["episodes"], lengths, strict=True)):
            self._episodes[i] = episode - 1
            repeated = self._repeat(i, state["actions"][str(i)], self.steps - length) if length else None
            if length == 0:
                observations[i] = self._begin_episode(i, self.steps)
            elif repeated is None or not np.array_equal(repeated, observations[i], equal_nan=True):
                warnings.warn(
                    f"environment {self.first + i} of {self.name!r} cannot repeat its episode {episode} of {length} "
                    "steps, and begins a new one: it is too long, or not determined by the seed of reset",
                    stacklevel=2,
                )
                self._episodes[i] = episode
                observations[i] = self._begin_episode(i, self.steps)
        self._observations = observations
        return observations.copy()

    def close(self) -> None:
        """Close all environments that have a ``close`` method."""
        for environment in self._environments:
            if hasattr(environment, "close"):
                environment.close()

    def _repeat(self, i: int, actions: np.ndarray, start: int) -> np.ndarray | None:
        """Repeat an episode's actions; return the last observation, None if the episode ends earlier."""
        if len(actions) != self.steps - start:
            return None
        observation = self._begin_episode(i, start)
        for action in actions.tolist() if isinstance(self.spaces.action, DiscreteSpace) else actions:
            observation, _, terminated, truncated, _ = self._step_calls[i](action)
            if terminated or truncated:
                return None
            self._actions[i].append(action)
        return np.asarray(observation, self._observations.dtype)

    def _begin_episode(self, i: int, step: int = 0) -> Any:
        """Reset an environment with its next episode's seed; return the observation."""
        self._episodes[i] += 1
        self._starts[i] = step
        self._actions[i].clear()
        try:
            result = self._environments[i].reset(seed=episode_seed(self.seed, self.first + i, self._episodes[i]))
        except Exception as error:
            if isinstance(error, TypeError) and "'seed'" in str(error):
                raise UserError(
                    f"reset of the environment {self.name!r} takes no seed; define reset(self, *, seed=None, "
                    "options=None), as Gymnasium does"
                ) from error
            self._fail(i, "in the reset", error)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UserError(
                f"reset of the environment {self.name!r} returned {_kind(result)}; return observation, info, as in "
                "Gymnasium"
            )
        self._check_observation(result[0])
        return result[0]

    def _check_result(self, i: int, result: Any) -> None:
        """Raise UserError unless ``step`` returned the five values that Gymnasium requires."""
        if result is None:
            return
        if not isinstance(result, tuple) or len(result) != 5:
            raise UserError(
                f"step of the environment {self.name!r} returned {_kind(result)}; return observation, reward, "
                "terminated, truncated, info, as in Gymnasium"
            )
        self._check_observation(result[0])
        if np.ndim(result[1]) or not isinstance(result[1], SupportsFloat):
            name = f"environment {self.first + i} of {self.name!r}"
            raise UserError(f"step of {name} returned the reward {result[1]!r}; return a number")

    def _check_observation(self, observation: Any) -> None:
        shape = self.spaces.observation.shape
        if np.shape(observation) != shape:
            raise UserError(
                f"the environment {self.name!r} returned an observation of shape {np.shape(observation)}, but its "
                f"observation_space has the shape {shape}; change the one or the other"
            )

    def _empty(self) -> np.ndarray:
        space = self.spaces.observation
        return np.empty((self.count, *space.shape), space.dtype)

    def _fail(self, i: int, when: str, error: Exception) -> NoReturn:
        if isinstance(error, UserError):
            raise error
        raise RunError(
            f"environment {self.first + i} of {self.name!r} raised {type(error).__name__} {when} of its episode "
            f"{self._episodes[i]}: {error}"
        ) from error


def _kind(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"


def spaces_of(name: str, environment: Any, prefix: str = "") -> Spaces:
    """Return the observation and action spaces of an environment in dsinga's form.

    Raises UserError if it lacks Gymnasium's attributes.
    """
    try:
        observation, action, *_ = [
            getattr(environment, attribute)
            for attribute in (f"{prefix}observation_space", f"{prefix}action_space", "reset", "step")
        ]
    except AttributeError as error:
        raise UserError(
            f"the environment {name!r} is a {type(environment).__name__}, which lacks {error.name}; define it, as "
            "Gymnasium describes (https://gymnasium.farama.org/api/env)"
        ) from None
    return Spaces(space_of(observation, "observation"), space_of(action, "action"))


class GymnasiumVector(VectorEnvironment):
    """Steps a ``gymnasium.vector.VectorEnv`` that resets an environment in the step that ends its episode.

    Its state is not saved: :meth:`restore` begins new episodes.
    """

    def __init__(self, name: str, vector: Any, seed: int = 0, first: int = 0):
        super().__init__(name, spaces_of(name, vector, "single_"), int(vector.num_envs), seed, first)
        self._vector = vector
        self._resets = 0
        self._no_finals = np.zeros((0, *self.spaces.observation.shape), self.spaces.observation.dtype)
        self._check_autoreset()

    def _check_autoreset(self) -> None:
        mode = getattr(self._vector.metadata.get("autoreset_mode"), "name", None)
        if mode != "SAME_STEP":
            raise UserError(
                f"the vector environment {self.name!r} has the autoreset mode {mode}; give it SAME_STEP in its metadata"
            )

    def reset(self) -> np.ndarray:
        """Begin an episode in each environment and return the observations (N, ...)."""
        self.steps = 0
        seed = episode_seed(self.seed, self.first, self._resets)
        self._resets += 1
        return self._array(self._vector.reset(seed=seed)[0])

    def _step(self, actions: np.ndarray) -> EnvironmentStep:
        try:
            observations, rewards, terminated, truncated, infos = self._vector.step(actions)
        except Exception as error:
            raise RunError(
                f"the {self.count} environments {self.name!r} from number {self.first} raised {type(error).__name__} "
                f"in step {self.steps + 1}: {error}"
            ) from error
        observations, ended = self._array(observations), (terminated | truncated).nonzero()[0]
        finals = self._restart(observations, ended, infos) if len(ended) else self._no_finals
        return EnvironmentStep(
            observations, rewards.astype(np.float32, copy=False), terminated, truncated, ended, finals
        )

    def _restart(self, observations: np.ndarray, ended: np.ndarray, infos: Mapping[str, Any]) -> np.ndarray:
        """Return the final observations of ended episodes."""
        return self._array(np.stack(list(infos["final_obs"][ended])))

    def state(self) -> dict[str, Any]:
        """Return the number of resets, which seeds the episodes after restoring."""
        return {"resets": self._resets}

    def restore(self, state: Mapping[str, Any]) -> np.ndarray:
        """Begin new episodes, with seeds that the saved run has not used; return their observations."""
        self._resets = int(state["resets"])
        return self.reset()

    def close(self) -> None:
        """Close the vector environment."""
        self._vector.close()

    def _array(self, observations: Any) -> np.ndarray:
        return np.array(observations, self.spaces.observation.dtype, order="C")


class CartPoleVector(GymnasiumVector):
    """Steps many CartPoles with array operations, and resets each in the step that ends its episode.

    Its state is saved.
    """

    def _check_autoreset(self) -> None:
        """Accept the mode NEXT_STEP, which :meth:`_restart` turns into SAME_STEP."""

    def _restart(self, observations: np.ndarray, ended: np.ndarray, infos: Mapping[str, Any]) -> np.ndarray:
        vector, finals = self._vector, observations[ended]
        states = vector.np_random.uniform(vector.low, vector.high, (4, len(ended)))
        vector.state[:, ended] = states
        vector.steps[ended] = 0
        vector.prev_done[:] = False  # or it would reset them in the next step
        observations[ended] = states.T
        return finals

    def state(self) -> dict[str, Any]:
        """Return positions, episode lengths and random state, to continue bit for bit."""
        vector = self._vector
        rng = vector.np_random.bit_generator.state
        return {"state": vector.state.copy(), "lengths": vector.steps.copy(), "rng": rng, "resets": self._resets}

    def restore(self, state: Mapping[str, Any]) -> np.ndarray:
        """Continue from a state, bit for bit."""
        vector = self._vector
        if state["lengths"].shape != (self.count,):
            raise UserError(
                f"the saved run had {len(state['lengths'])} environments {self.name!r}, this one has {self.count}; "
                "resume with the same number"
            )
        self.reset()
        self._resets = int(state["resets"])
        vector.state, vector.steps = np.array(state["state"]), np.array(state["lengths"])
        vector.np_random.bit_generator.state = state["rng"]
        return self._array(vector.state.T)
