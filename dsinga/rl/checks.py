"""Checks of what a user gives an algorithm, an agent or a run: settings, the net, and the spaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dsinga.arguments import check_whole
from dsinga.errors import UserError
from dsinga.rl.model import KerasModel, Model
from dsinga.rl.spaces import BoxSpace, DiscreteSpace, Space, Spaces


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
