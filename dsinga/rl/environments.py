"""Makes environments by their names: the user's own, registered ones, and those of Gymnasium."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dsinga.errors import UserError
from dsinga.registry import how_to_register, lookup, nearest, registered
from dsinga.rl.environment_loop import EnvironmentLoop
from dsinga.rl.gymnasium_vector import CartPoleVector, GymnasiumVector
from dsinga.rl.vector_environment import VectorEnvironment

Environment = str | Callable[..., Any]

# Gymnasium's vector class of CartPole takes 41 us a step for any number, a loop 7 us for each environment.
CART_POLE = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
CART_POLE_VECTOR_FROM = 6

# Packages that register environments in Gymnasium, by their namespaces.
PACKAGES = {"ALE": "ale-py", "MinAtar": "MinAtar"}


def make_environments(
    environment: Environment, count: int, *, seed: int = 0, first: int = 0, **settings: Any
) -> VectorEnvironment:
    """Return ``count`` environments that are stepped together.

    Args:
        environment: a name that was registered by ``@dsinga.register("environment", name)``, else one of Gymnasium,
            such as "CartPole-v1"; or a class or function that returns an environment. A class or function returns one
            environment with Gymnasium's interface, or is a subclass of ``gymnasium.vector.VectorEnv`` that resets in
            the step that ends an episode (autoreset mode SAME_STEP).
        count: how many.
        seed: determines their random numbers.
        first: the number of the first environment, where others of the same run are elsewhere; each number has random
            numbers of its own.
        settings: further arguments of the environment.

    Raises UserError for an environment that is unknown, not installed, or has spaces without a counterpart here.
    """
    if count < 1:
        raise UserError(f"the number of environments must be at least 1, not {count}")
    name, create = _find(environment)
    if create is not None and _is_vector_class(create):
        return GymnasiumVector(name, create(num_envs=count, **settings), seed, first)
    if create is None and count >= CART_POLE_VECTOR_FROM and _gymnasium_spec(name).vector_entry_point == CART_POLE:
        return CartPoleVector(name, _gymnasium(name).make_vec(name, num_envs=count, **settings), seed, first)
    return EnvironmentLoop(name, lambda: make_environment(environment, **settings), count, seed, first)


def make_environment(environment: Environment, **settings: Any) -> Any:
    """Return one environment as it is, with Gymnasium's interface. Raises UserError as :func:`make_environments`."""
    name, create = _find(environment)
    if create is None:
        _gymnasium_spec(name)
        create, settings = _gymnasium(name).make, {"id": name, **settings}
    try:
        return create(**settings)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled":
            raise UserError(f"the environment {name!r} needs a package that is not installed: {error}") from error
        raise UserError(f"the environment {name!r} cannot be made: {type(error).__name__}: {error}") from error


def _find(environment: Environment) -> tuple[str, Callable[..., Any] | None]:
    """Return the name of an environment and the class or function that makes it, None for one of Gymnasium."""
    if not isinstance(environment, str):
        return getattr(environment, "__name__", type(environment).__name__), environment
    return environment, lookup("environment", environment) if environment in registered("environment") else None


def _gymnasium(name: str) -> Any:
    try:
        import gymnasium
    except ImportError:
        raise UserError(
            f"the environment {name!r} is not registered, so it is one of Gymnasium, which is not installed: "
            "pip install 'dsinga[rl]'"
        ) from None
    return gymnasium


def _gymnasium_spec(name: str) -> Any:
    """Return what Gymnasium knows of an environment; raise UserError, with the nearest name, if it knows none."""
    gymnasium = _gymnasium(name)
    module, _, identifier = name.rpartition(":")  # as in "package.module:Name-v0"
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(identifier)
    except ImportError as error:
        raise UserError(f"the environment {name!r} cannot be imported: {error}") from error
    except gymnasium.error.Error:
        package = PACKAGES.get(name.partition("/")[0])
        if package:
            raise UserError(f"the environment {name!r} is in the package {package}: pip install {package}") from None
        hint = nearest(name, [*registered("environment"), *gymnasium.registry])
        raise UserError(
            f"there is no environment {name!r}{hint}{'' if hint else ';'} {how_to_register('environment', name)}"
        ) from None


def _is_vector_class(create: Any) -> bool:
    """Whether ``create`` is a subclass of ``gymnasium.vector.VectorEnv``, without importing Gymnasium."""
    bases = getattr(create, "__mro__", ())
    return any(base.__name__ == "VectorEnv" and base.__module__.startswith("gymnasium.") for base in bases)
