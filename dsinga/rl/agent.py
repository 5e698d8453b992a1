"""The agent that you train and use: it chooses actions, learns from rewards, and saves and restores itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.arguments import check_whole
from dsinga.base.arrays import refuse_nan
from dsinga.base.errors import UserError
from dsinga.checkpoint import directory
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.checks import check_finite, check_same_actions
from dsinga.rl.environments.vector_environment import VectorEnvironment
from dsinga.rl.experience import Sampled
from dsinga.rl.recurrence import HiddenStates


class Agent:
    """Chooses actions with an algorithm, learns from experience, and writes checkpoints.

    Override ``sample`` or ``predict`` to prepare observations, ``learn`` to prepare experience.

    Args:
        seed: determines the random numbers of ``sample``.
    """

    def __init__(self, algorithm: Algorithm, seed: int = 0):
        if not isinstance(algorithm, Algorithm):
            raise UserError(f"an agent takes an algorithm, as dsinga.rl.PPO(model, spaces), not {algorithm!r}")
        check_whole("seed", seed, 0)
        self.algorithm = algorithm
        self.rng = np.random.default_rng(seed)

    def hidden_states(self, count: int) -> HiddenStates | None:
        """Return initial hidden states for ``count`` environments; None if the net has no memory."""
        return self.algorithm.hidden_states(count)

    def sample(self, observations: np.ndarray, hidden: HiddenStates | None = None) -> Sampled:
        """Draw an action for each observation (N, ...), or for a single one, to explore.

        ``hidden``, the states before the observations, is updated in place.
        """
        batch, is_single = self._batch(observations)
        try:
            sampled = self.algorithm.sample(batch, self.rng, *_states(hidden))
        except UserError:  # the net failed: check whether an observation is not finite
            check_finite(batch)
            raise
        if not is_single:
            return sampled
        return Sampled(sampled.actions[0], {name: array[0] for name, array in sampled.extras.items()})

    def predict(self, observations: np.ndarray, hidden: HiddenStates | None = None) -> Any:
        """Return the best action for each observation (N, ...), or for a single one."""
        batch, is_single = self._batch(observations)
        try:
            actions = self.algorithm.predict(batch, *_states(hidden))
        except UserError:
            check_finite(batch)
            raise
        return actions[0] if is_single else actions

    def learn(self, batch: Any) -> dict[str, float]:
        """Update the params from a rollout or a batch of transitions; return metrics such as "loss"."""
        try:
            return self.algorithm.learn(batch)
        except UserError:
            for name in ("observations", "next_observations"):
                check_finite(getattr(batch, name, ()))
            raise

    def check_environments(self, environments: VectorEnvironment) -> None:
        """Raise UserError if the environments do not accept the actions that the algorithm chooses."""
        check_same_actions(self.algorithm.spaces.action, environments.spaces.action, environments.name)

    def state(self) -> dict[str, Any]:
        """Return params, updater state and random generator, to continue bit for bit."""
        return {"algorithm": self.algorithm.state(), "rng": self.rng.bit_generator.state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`. Raises UserError if it is for another net."""
        self.algorithm.restore(state["algorithm"])
        self.rng.bit_generator.state = state["rng"]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a checkpoint ``<folder>/step<N>`` after N updates; return its path. Raises RunError on failure."""
        algorithm = self.algorithm
        steps = algorithm.updater.steps
        return directory.write_checkpoint(
            folder, steps, algorithm.params, algorithm.updater.state, {"agent": type(algorithm).__name__}, self.state()
        )

    def restore(self, folder: str | os.PathLike[str]) -> None:
        """Read a checkpoint, or a folder's newest one, so that learning continues bit for bit.

        ``folder`` can be a workspace of :func:`dsinga.rl.train`; from worker groups only the params are restored.
        Raises UserError if there is no checkpoint, or if it is for another net or algorithm.
        """
        path = Path(folder)
        if not directory.is_checkpoint(path):
            newest = directory.latest(path) or directory.latest(path / "checkpoint")
            if newest is None:
                raise UserError(f"there is no checkpoint in {path}; give the folder that agent.save(folder) wrote to")
            path = newest
        checkpoint = directory.read_checkpoint(path)
        refuse_nan(checkpoint.params, str(path))
        state = checkpoint.loop.get("engine", checkpoint.loop)
        state = state["learning"]["agent"] if "learning" in state else state
        if "algorithm" in state:
            self.set_state(state)
        elif self.algorithm.on_policy:
            self.algorithm.take_params(checkpoint.params)
        else:
            name = type(self.algorithm).__name__
            raise UserError(f"{path} is no checkpoint of an agent: its params are not all that {name} goes on from")

    def _batch(self, observations: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return the observations as a batch (N, ...), and whether a single one was given."""
        space = self.algorithm.spaces.observation
        if isinstance(observations, tuple) and len(observations) == 2 and isinstance(observations[1], dict):
            raise UserError(
                "an agent takes observations; reset of Gymnasium returns (observation, info): give the first"
            )
        array = np.asarray(observations)
        if array.shape[1:] == space.shape and array.ndim == len(space.shape) + 1:
            return array, False
        if array.shape == space.shape:
            return array[np.newaxis], True
        raise UserError(f"observations have the shape {space.shape}, or (N, ...) for several; these have {array.shape}")


def _states(hidden: HiddenStates | None) -> tuple[HiddenStates, ...]:
    return () if hidden is None else (hidden,)
