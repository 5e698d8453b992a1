"""Checks the arguments of algorithms, agents and runs, to refuse wrong settings, nets and spaces early."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.base import arguments
from dsinga.base.errors import UserError
from dsinga.job.message import field_types
from dsinga.job.setting_arguments import documented, settings_from, signature
from dsinga.rl.environments.spaces import BoxSpace, DiscreteSpace, Space, Spaces
from dsinga.rl.model import KerasModel, Model

# Settings' names in other packages, with their names here.
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
    "device": "give the model as rl.Model(model.job(gpu=[0]))",
}

# Refuses unknown settings of a class, and suggests the right name.
check_settings = functools.partial(arguments.check_settings, instead=INSTEAD)


def take_settings(cls: type[Any]) -> None:
    """Make an algorithm's constructor accept the settings of its ``Conf`` as keyword arguments."""
    constructor, conf = getattr(cls.__init__, "_constructor", cls.__init__), cls.Conf

    @functools.wraps(constructor)
    def create(self: Any, *args: Any, **given: Any) -> None:
        settings = {name: given.pop(name) for name in field_types(conf) if name in given}
        base = vars(self).get("settings")  # of a subclass with further settings, whose constructor calls this one
        if not isinstance(base, conf):
            self.settings = settings_from(conf, cls.__name__, (), settings, INSTEAD)
        elif settings:
            self.settings = base.replace(**settings)
        constructor(self, *args, **given)

    parameters = inspect.signature(constructor).parameters.values()
    own = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    place = next((n for n, parameter in enumerate(own) if parameter.kind is parameter.KEYWORD_ONLY), len(own))
    taken = signature(conf).parameters.values()
    own[place:place] = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in taken]
    create.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    create._constructor = constructor  # type: ignore[attr-defined]
    cls.__init__ = create
    cls.__doc__ = documented(cls.__doc__, conf)


def check_model_and_spaces(given: Mapping[str, Any]) -> None:
    """Raise UserError unless an algorithm was given a dsinga.rl.Model and dsinga's spaces."""
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


def check_finite(observations: Any) -> None:
    """Raise UserError naming the place if an observation is NaN or infinite."""
    array = np.asarray(observations)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0]
        raise UserError(
            f"an observation has {array[tuple(place)]} at {tuple(place[1:].tolist())}; let the environment give finite "
            "numbers"
        )


def check_same_actions(agent: Space, environment: Space, name: str) -> None:
    """Raise UserError unless the environment ``name`` accepts the agent's actions."""
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
