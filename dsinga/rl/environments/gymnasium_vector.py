"""GymnasiumVector: runs a vector environment of Gymnasium, which steps all environments by array operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.base.errors import RunError, UserError
from dsinga.rl.environments.environment_loop import spaces_of
from dsinga.rl.environments.vector_environment import EnvironmentStep, VectorEnvironment, episode_seed


class GymnasiumVector(VectorEnvironment):
    """An environment of the class ``gymnasium.vector.VectorEnv`` that resets in the step that ends an episode.

    Its state is not saved: after :meth:`restore` all environments begin new episodes.

    Args:
        name: the name of the environment, for messages.
        vector: the environment.
        seed: determines its random numbers.
        first: the number of the first environment.

    Raises UserError for an environment that resets in the next step instead.
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
        """Return the final observations of ended episodes; ``observations`` has the first of the next ones."""
        return self._array(np.stack(list(infos["final_obs"][ended])))

    def state(self) -> dict[str, Any]:
        """Return the number of resets, which selects other episodes after restoring."""
        return {"resets": self._resets}

    def restore(self, state: Mapping[str, Any]) -> np.ndarray:
        """Begin new episodes and return the observations (N, ...)."""
        self._resets = int(state["resets"])
        return self.reset()

    def close(self) -> None:
        """Close the vector environment."""
        self._vector.close()

    def _array(self, observations: Any) -> np.ndarray:
        return np.array(observations, self.spaces.observation.dtype, order="C")


class CartPoleVector(GymnasiumVector):
    """Gymnasium's CartPoleVectorEnv, changed to reset in the step that ends an episode. Its state is saved."""

    def _check_autoreset(self) -> None:
        """Accept its mode NEXT_STEP, which :meth:`_restart` changes."""

    def _restart(self, observations: np.ndarray, ended: np.ndarray, infos: Mapping[str, Any]) -> np.ndarray:
        vector, finals = self._vector, observations[ended]
        states = vector.np_random.uniform(vector.low, vector.high, (4, len(ended)))
        vector.state[:, ended] = states
        vector.steps[ended] = 0
        vector.prev_done[:] = False  # or it would reset them in the next step
        observations[ended] = states.T
        return finals

    def state(self) -> dict[str, Any]:
        """Return the positions, the lengths of the episodes, and the state of the random numbers."""
        vector = self._vector
        rng = vector.np_random.bit_generator.state
        return {"state": vector.state.copy(), "lengths": vector.steps.copy(), "rng": rng, "resets": self._resets}

    def restore(self, state: Mapping[str, Any]) -> np.ndarray:
        """Go on from a state: the same bits as if it had not been saved."""
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
