"""Makes environments by name: those that you registered, your own functions, and Gymnasium's."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from dsinga.base.arguments import check_whole
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import find, how_to_register, nearest, registered, user_errors
from dsinga.rl.environments.environment_loop import CartPoleVector, EnvironmentLoop, GymnasiumVector
from dsinga.rl.environments.vector_environment import VectorEnvironment

Environment = str | Callable[..., Any]

# Gymnasium's vector class of CartPole takes 41 us a step for any number, a loop 7 us for each environment.
CART_POLE = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
CART_POLE_VECTOR_FROM = 6

# Packages with environments for Gymnasium, by their namespaces: the module, and the name of the package.
PACKAGES = {"ALE": ("ale_py", "ale-py"), "MinAtar": ("minatar", "MinAtar")}


@public
def make_environments(
    environment: Environment, count: int, *, seed: int = 0, first: int = 0, **settings: Any
) -> VectorEnvironment:
    """Return ``count`` environments of a name, class or function, which are stepped together.

    Args:
        environment: a name registered by ``@dsinga.register("environment", name)``, or Gymnasium's, such as
            "CartPole-v1". Or a class or function that returns an environment with Gymnasium's interface. Or a subclass
            of ``gymnasium.vector.VectorEnv`` with autoreset mode SAME_STEP (it resets in the step that ends an
            episode).
        count: how many.
        seed: determines their random numbers.
        first: the number of the first environment; each number has its own random numbers.
        settings: further arguments of the environment.

    A class has ``observation_space`` and ``action_space`` (Gymnasium's ``Box`` and ``Discrete``, or
    :func:`dsinga.rl.box` and :class:`dsinga.rl.DiscreteSpace`), ``reset(seed=)``, ``step(action)``, and optionally
    ``render()``.

    - ``terminated`` means that no reward would follow the step. After ``truncated``, the last observation's value
      replaces the rewards that would follow.
    - Observations of uint8 and bool are kept as uint8, others become float32. Actions of a box are clipped to its
      bounds; scale others to about -1 to 1 with ``gymnasium.wrappers.RescaleAction``.
    - Random numbers come from the ``seed`` of ``reset``, which differs in each episode. An environment is saved as its
      episode's number and actions, and restored by repeating them. If episodes are not independent (MinAtar's sticky
      actions, BipedalWalker's physics), it begins a new episode, with a warning. A ``VectorEnv`` always begins a new
      one.
    - An exception, a reward that is not finite or an observation of another shape ends the run. The message names the
      environment and its step.

    Raises UserError if an environment is unknown, not installed, or has unsupported spaces.
    """
    check_whole("the number of environments", count, 1)
    name, create = _find(environment)
    if create is not None and _is_vector_class(create):
        return GymnasiumVector(name, _create(name, create, num_envs=count, **settings), seed, first)
    if create is None and count >= CART_POLE_VECTOR_FROM and _gymnasium_spec(name).vector_entry_point == CART_POLE:
        vector = _create(name, _gymnasium(name).make_vec, id=name, num_envs=count, **settings)
        return CartPoleVector(name, vector, seed, first)
    return EnvironmentLoop(name, lambda: make_environment(environment, **settings), count, seed, first)


@public
def make_environment(environment: Environment, **settings: Any) -> Any:
    """Return a single environment with Gymnasium's interface. Raises UserError as :func:`make_environments`."""
    name, create = _find(environment)
    if create is None:
        _gymnasium_spec(name)
        create, settings = _gymnasium(name).make, {"id": name, **settings}
    return _create(name, create, **settings)


def without_registered_name(environment: Environment) -> Environment:
    """Return the class or function of a registered name, which Dask workers may not know."""
    _, create = _find(environment)
    return environment if create is None else create


def _create(name: str, create: Callable[..., Any], **settings: Any) -> Any:
    """Call the class or function of an environment; raise UserError if the call fails."""
    try:
        return create(**settings)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled":
            raise UserError(f"the environment {name!r} needs a package that is not installed: {error}") from error
        raise UserError(f"the environment {name!r} cannot be made: {type(error).__name__}: {error}") from error


def make_rendering_environment(environment: Environment, **settings: Any) -> tuple[str, Any]:
    """Return an environment's name, and an instance that can draw frames as arrays, if it can."""
    name, create = _find(environment)
    if create is None or "render_mode" in inspect.signature(create).parameters:
        settings["render_mode"] = "rgb_array"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's warning of an unknown mode; below it is refused
        made = make_environment(environment, **settings)
    modes = (getattr(made, "metadata", None) or {}).get("render_modes", [])
    if create is None and "rgb_array" not in modes:
        raise UserError(
            f"the environment {name!r} renders no pictures: its render modes are {', '.join(modes) or 'none'}, without "
            "rgb_array"
        )
    return name, made


def _find(environment: Environment) -> tuple[str, Callable[..., Any] | None]:
    """Return an environment's name, and the class or function that makes it; None for Gymnasium's."""
    if not isinstance(environment, str):
        if not callable(environment):
            what = f"is made already: {environment}" if hasattr(environment, "step") else f"is {environment!r}"
            raise UserError(
                f"the environment {what}; give its name, or a class or function that returns a new one each time, as "
                "lambda: gymnasium.make(...)"
            )
        return getattr(environment, "__name__", type(environment).__name__), environment
    return environment, find("environment", environment)


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
    """Return Gymnasium's entry of an environment; raise UserError with the nearest name if there is none."""
    gymnasium = _gymnasium(name)
    module, _, identifier = name.rpartition(":")  # as in "package.module:Name-v0"
    try:
        if module:
            with user_errors(f"the environment {name!r} cannot be imported: "):
                importlib.import_module(module)
        elif name not in gymnasium.registry:
            _register_package(name.partition("/")[0])
        return gymnasium.spec(identifier)
    except ImportError as error:
        raise UserError(f"the environment {name!r} cannot be imported: {error}") from error
    except gymnasium.error.NamespaceNotFound:
        package = PACKAGES.get(name.partition("/")[0], ("", ""))[1]
        remedy = f"it is in the package {package}: pip install {package}" if package else "install it"
        raise UserError(f"the package of the environment {name!r} is not installed; {remedy}") from None
    except gymnasium.error.Error:
        hint = nearest(name, [*registered("environment"), *gymnasium.registry])
        raise UserError(
            f"there is no environment {name!r}{hint}{'' if hint else ';'} {how_to_register('environment', name)}"
        ) from None


def _register_package(namespace: str) -> None:
    """Import an installed package that provides the environments "namespace/..." to Gymnasium."""
    for entry_point in entry_points(group="gymnasium.envs", name=namespace):
        entry_point.load()()
    with contextlib.suppress(ImportError):
        if namespace in PACKAGES:
            importlib.import_module(PACKAGES[namespace][0])


def _is_vector_class(create: Any) -> bool:
    """Whether ``create`` subclasses ``gymnasium.vector.VectorEnv``, without importing Gymnasium."""
    bases = getattr(create, "__mro__", ())
    return any(base.__name__ == "VectorEnv" and base.__module__.startswith("gymnasium.") for base in bases)
