"""Checks of what a user gives an algorithm, an agent or a run: names and values of settings, the net, the spaces."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dsinga import arguments
from dsinga.arguments import check_whole
from dsinga.errors import UserError
from dsinga.rl.model import KerasModel, Model
from dsinga.rl.spaces import BoxSpace, DiscreteSpace, Space, Spaces

# Settings of other packages, with what to write here.
INSTEAD = {
    "gamma": "use discount",
    "gae_lambda": "use decay",
    "lam": "use decay",
    "learning_rate": "give updater=dsinga.nn.Adam(learning_rate)",
    "lr": "give updater=dsinga.nn.Adam(learning_rate)",
    "n_epochs": "use epochs",
    "clip_range": "use clip",
    "clip_coef": "use clip",
    "ent_coef": "use entropy_scale",
    "vf_coef": "use value_scale",
    "max_grad_norm": "use max_gradient_norm",
    "tau": "use target_share",
    "target_update_interval": "use target_every",
    "exploration_initial_eps": "use first_epsilon",
    "exploration_final_eps": "use last_epsilon",
    "exploration_fraction": "use epsilon_steps, a number of steps",
    "batch_size": "PPO has minibatches, parts of a rollout; a replay memory has rl.ReplaySettings(batch_size=...)",
    "buffer_size": "give rl.train replay=rl.ReplaySettings(capacity=...)",
    "learning_starts": "give rl.train replay=rl.ReplaySettings(learn_after=...)",
    "train_freq": "give rl.train replay=rl.ReplaySettings(learn_every=...)",
    "n_steps": "give rl.train rollout_steps",
    "total_timesteps": "use steps",
    "timesteps": "use steps",
    "n_envs": "use environments",
    "num_envs": "use environments",
    "num_environments": "use environments",
    "num_actors": "use actors",
    "train_steps": "use steps",
    "disp_freq": "use log_every",
    "test_freq": "use evaluate_every",
    "checkpoint_freq": "use checkpoint_every, a number of steps of environments",
    "capacity": "give replay=rl.ReplaySettings(capacity=...)",
    "learn_after": "give replay=rl.ReplaySettings(learn_after=...)",
    "learn_every": "give replay=rl.ReplaySettings(learn_every=...)",
    "prioritized": "give replay=rl.ReplaySettings(prioritized=True)",
    "discount": "PPO and its kin take it; else give rl.train replay=rl.ReplaySettings(discount=...)",
    "verbose": "rl.train has progress=False, which shows nothing",
    "device": "agents learn on the CPU",
}

# Refuses unknown settings of a class, with the nearest name or what to write.
check_settings = functools.partial(arguments.check_settings, instead=INSTEAD)


def check_whole_fields(settings: Any, **least: int) -> None:
    """Raise UserError unless each named field of some settings is a whole number of at least what is given for it."""
    for name, low in least.items():
        check_whole(name, getattr(settings, name), low)


def check_model_and_spaces(given: Mapping[str, Any]) -> None:
    """Raise UserError where the arguments of an algorithm have a model or spaces that are not of this package."""
    model, spaces = given.get("model"), given.get("spaces")
    if "model" in given and not isinstance(model, Model):
        example = "dsinga.rl.Model(net)" if isinstance(model, KerasModel) else "dsinga.rl.Model(dsinga.nn.Model(...))"
        raise UserError(f"an algorithm takes a dsinga.rl.Model, not {_kind(model)}; give {example}")
    if "spaces" not in given:
        return
    if not isinstance(spaces, Spaces) or not all(isinstance(space, DiscreteSpace | BoxSpace) for space in spaces):
        what = f"Spaces of {_kind(spaces.observation)}" if isinstance(spaces, Spaces) else _kind(spaces)
        raise UserError(
            f"an algorithm takes the spaces of dsinga.rl, not {what}; give dsinga.rl.make_environments(environment, "
            "1).spaces"
        )


@contextlib.contextmanager
def explained_observations(*observations: Any) -> Iterator[None]:
    """Raise UserError about observations that are not finite in place of one about the net that refuses them."""
    try:
        yield
    except UserError:
        for array in observations:
            check_finite(array)
        raise


def check_finite(observations: Any) -> None:
    """Raise UserError where observations are not all finite."""
    array = np.asarray(observations)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0]
        raise UserError(
            f"an observation has {array[tuple(place)]} at {tuple(place[1:].tolist())}; let the environment give finite "
            "numbers"
        )


def check_same_actions(agent: Space, environment: Space, name: str) -> None:
    """Raise UserError unless an agent takes the actions of the environment ``name``."""
    if isinstance(agent, BoxSpace) and isinstance(environment, BoxSpace):
        if np.array_equal(agent.low, environment.low) and np.array_equal(agent.high, environment.high):
            return
    elif agent == environment:
        return
    raise UserError(
        f"the agent takes actions that are {_described(agent)}, but those of the environment {name!r} are "
        f"{_described(environment)}; make the agent with the spaces of this environment"
    )


def _described(space: Space) -> str:
    return f"{space} from {space.low} to {space.high}" if isinstance(space, BoxSpace) else str(space)


def _kind(value: Any) -> str:
    package = type(value).__module__.partition(".")[0]
    return f"a {type(value).__name__}" if package == "builtins" else f"a {type(value).__name__} of {package}"
