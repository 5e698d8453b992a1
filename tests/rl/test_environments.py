"""Environments by name, in a loop and as vectors: resets in the same step, seeds, state, errors."""

import builtins

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinga
from dsinga import rl
from dsinga.base.errors import RunError, UserError
from dsinga.rl.environments.environment_loop import LONGEST_REPLAY, CartPoleVector, EnvironmentLoop, GymnasiumVector
from dsinga.rl.environments.registered import make_environment, make_environments
from dsinga.rl.environments.vector_environment import episode_seed
from tests.support.refusals import refused


class Counting:
    """Counts steps; the observation is [seed, steps], the reward the action; ends after ``length`` steps."""

    observation_space = rl.box((2,))
    action_space = rl.DiscreteSpace(5)

    def __init__(self, length=3, cut=False):
        self.length, self.cut = length, cut

    def reset(self, *, seed=None):
        self.seed, self.steps = seed % 1000, 0
        return np.array([self.seed, 0.0], np.float32), {}

    def step(self, action):
        self.steps += 1
        is_end = self.steps >= self.length
        observation = np.array([self.seed, self.steps], np.float32)
        return observation, float(action), is_end and not self.cut, is_end and self.cut, {}


class Failing(Counting):
    """Does what its argument says in its second step, the first environment excepted."""

    made = 0

    def __init__(self, fault):
        super().__init__(length=10)
        self.fault, self.number = fault, Failing.made
        Failing.made += 1

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.number and self.steps == 2:
            if isinstance(self.fault, Exception):
                raise self.fault
            reward = self.fault
        return observation, reward, *rest


def actions(environments, rng):
    space = environments.spaces.action
    if isinstance(space, rl.DiscreteSpace):
        return rng.integers(0, space.n, environments.count)
    return rng.normal(size=(environments.count, *space.shape)).astype(np.float32)


def test_a_step_returns_the_first_observation_of_the_next_episode_and_the_final_one():
    environments = make_environments(Counting, 2, seed=4, length=2)
    first = environments.reset()
    seeds = [episode_seed(4, i, 0) % 1000 for i in range(2)]
    np.testing.assert_array_equal(first, [[seeds[0], 0], [seeds[1], 0]])
    step = environments.step(np.array([3, 4]))
    np.testing.assert_array_equal(step.observations[:, 1], [1, 1])
    np.testing.assert_array_equal(step.rewards, [3, 4])
    assert not step.terminated.any()
    assert not step.truncated.any()
    assert len(step.ended) == 0
    assert step.final_observations.shape == (0, 2)
    step = environments.step(np.array([0, 1]))
    np.testing.assert_array_equal(step.observations, [[episode_seed(4, i, 1) % 1000, 0] for i in range(2)])
    np.testing.assert_array_equal(step.final_observations, [[seed, 2] for seed in seeds])
    np.testing.assert_array_equal(step.next_observations(), step.final_observations)
    np.testing.assert_array_equal(step.ended, [0, 1])
    assert step.terminated.all()
    assert not step.truncated.any()
    assert step.rewards.dtype == step.observations.dtype == np.float32
    assert step.terminated.dtype == bool


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("count", [1, 9])
def test_the_same_seed_gives_the_same_steps_and_another_seed_others(name, count):
    def run(seed):
        environments, rng = make_environments(name, count, seed=seed), np.random.default_rng(0)
        observations = [environments.reset()]
        observations += [environments.step(actions(environments, rng)).observations for _ in range(30)]
        environments.close()
        return np.array(observations)

    once = run(1)
    assert once.shape[1] == count
    assert once.dtype == np.float32
    np.testing.assert_array_equal(once, run(1))
    assert not np.array_equal(once, run(2))
    assert count == 1 or not np.array_equal(once[:, 0], once[:, 1])


def test_environments_of_several_actors_have_random_numbers_by_their_numbers():
    together = make_environments("Acrobot-v1", 4, seed=3).reset()
    apart = [make_environments("Acrobot-v1", 2, seed=3, first=first).reset() for first in (0, 2)]
    np.testing.assert_array_equal(together, np.concatenate(apart))


def test_cart_pole_as_a_vector_does_what_single_ones_do():
    vector, rng = make_environments("CartPole-v1", 16, seed=5), np.random.default_rng(1)
    assert isinstance(vector, CartPoleVector)
    single = [gymnasium.make("CartPole-v1") for _ in range(16)]
    for environment in single:
        environment.reset()
    observations, ends = vector.reset(), 0
    for i, environment in enumerate(single):
        environment.unwrapped.state = vector._vector.state[:, i]
    for _ in range(60):
        taken = actions(vector, rng)
        step = vector.step(taken)
        expected = [environment.step(int(action)) for environment, action in zip(single, taken, strict=True)]
        np.testing.assert_allclose(step.next_observations(), [e[0] for e in expected], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(step.rewards, [e[1] for e in expected])
        np.testing.assert_array_equal(step.terminated, [e[2] for e in expected])
        for i in step.ended:
            single[i].reset()
            single[i].unwrapped.state = vector._vector.state[:, i]
            assert np.all(np.abs(step.observations[i]) <= 0.05)
        ends += len(step.ended)
        observations = step.observations
    assert ends > 20
    assert observations.flags.c_contiguous


def test_cart_pole_is_cut_off_after_its_time_limit():
    environments = make_environments("CartPole-v1", 8, max_episode_steps=5)
    environments.reset()
    for _ in range(2):
        for _ in range(4):
            step = environments.step(np.array([0, 1] * 4))
            assert not len(step.ended)
        step = environments.step(np.array([1, 0] * 4))
        assert step.truncated.all()
        assert not step.terminated.any()
        assert len(step.final_observations) == 8


@pytest.mark.parametrize(
    ("environment", "count"), [("CartPole-v1", 3), ("CartPole-v1", 8), ("Pendulum-v1", 2), (Counting, 3)]
)
@given(before=st.integers(0, 25))
@settings(max_examples=5)
def test_restored_environments_go_on_with_the_same_bits(environment, count, before):
    rng = np.random.default_rng(before)
    unbroken = make_environments(environment, count, seed=7, first=2)
    unbroken.reset()
    for _ in range(before):
        unbroken.step(actions(unbroken, rng))
    resumed = make_environments(environment, count, seed=7, first=2)
    state = unbroken.state()
    observations = resumed.restore(state)
    for _ in range(30):
        taken = actions(unbroken, rng)
        step, again = unbroken.step(taken), resumed.step(taken)
        for array, repeated in zip(step, again, strict=True):
            np.testing.assert_array_equal(array, repeated)
    assert observations.shape == (count, *unbroken.spaces.observation.shape)


def test_a_restored_environment_that_differs_begins_a_new_episode_with_a_warning():
    class Random(Counting):
        def step(self, action):
            _, *rest = super().step(action)
            return np.random.default_rng().random(2, np.float32), *rest

    environments = make_environments(Random, 1, length=100)
    environments.reset()
    environments.step(np.array([0]))
    again = make_environments(Random, 1, length=100)
    with pytest.warns(UserWarning, match="environment 0 of 'Random' cannot repeat its episode 0 of 1 steps"):
        observations = again.restore(environments.state())
    np.testing.assert_array_equal(observations, [[episode_seed(0, 0, 1) % 1000, 0]])
    assert not again.state()["lengths"][0]


def test_actions_of_an_episode_without_end_are_not_kept(monkeypatch):
    assert LONGEST_REPLAY == 100_000
    monkeypatch.setattr("dsinga.rl.environments.environment_loop.LONGEST_REPLAY", 4)
    environments = make_environments(Counting, 1, length=100)
    environments.reset()
    for _ in range(6):
        environments.step(np.array([0]))
    assert len(environments.state()["actions"]["0"]) == 4
    with pytest.warns(UserWarning, match="too long"):
        environments.restore(environments.state())


@pytest.mark.parametrize("count", [1, 8])
def test_the_state_of_another_number_of_environments_is_refused(count):
    environments = make_environments("CartPole-v1", count)
    environments.reset()
    with pytest.raises(UserError, match=f"had {count} environments 'CartPole-v1', this one has {count + 1}"):
        make_environments("CartPole-v1", count + 1).restore(environments.state())


def test_images_stay_uint8_and_bits_become_uint8():
    class Image(Counting):
        observation_space = gymnasium.spaces.Box(0, 255, (3, 4, 4), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None):
            return np.full((3, 4, 4), seed % 256, np.uint8), {}

    environments = make_environments(Image, 2)
    observations = environments.reset()
    assert observations.dtype == np.uint8
    assert environments.spaces.observation.dtype == np.uint8
    np.testing.assert_array_equal(observations[:, 0, 0, 0], [episode_seed(0, i, 0) % 256 for i in range(2)])
    Image.observation_space = gymnasium.spaces.Box(0, 1, (3, 4, 4), bool)
    assert make_environments(Image, 1).spaces.observation.dtype == np.uint8


def test_continuous_actions_are_clipped_to_their_bounds():
    class Echo(Counting):
        action_space = rl.box((2,), -1, 1)

        def step(self, action):
            assert action.dtype == np.float32
            return np.array(action, np.float32), 0.0, False, False, {}

    environments = make_environments(Echo, 2)
    environments.reset()
    taken = np.array([[5, -5], [0.5, 0]], np.float32)
    np.testing.assert_array_equal(environments.step(taken).observations, [[1, -1], [0.5, 0]])
    np.testing.assert_array_equal(taken, [[5, -5], [0.5, 0]])


def test_registered_classes_and_functions_are_found_by_name():
    dsinga.register("environment", "Counting-test")(Counting)
    dsinga.register("environment", "Short-test")(lambda: Counting(length=1))
    assert isinstance(make_environments("Counting-test", 2, length=4), EnvironmentLoop)
    environments = make_environments("Short-test", 2)
    environments.reset()
    assert len(environments.step(np.array([0, 0])).ended) == 2
    assert make_environment("Counting-test", length=9).length == 9


class SameStep(gymnasium.vector.VectorEnv):
    """Two numbers that rise; an environment ends after as many steps as its number plus 1."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs):
        self.num_envs, self.count = num_envs, np.zeros(num_envs)

    def reset(self, *, seed=None, options=None):
        self.count[:] = 0
        return self.count[:, None].astype(np.float32), {}

    def step(self, taken):
        self.count += 1
        ends = self.count > np.arange(self.num_envs)
        finals = np.array([*self.count[:, None].astype(np.float32), None], object)[:-1]
        self.count[ends] = 0
        observations = self.count[:, None].astype(np.float32)
        return observations, np.ones(self.num_envs), ends, np.zeros_like(ends), {"final_obs": finals}


def test_a_vector_class_of_ones_own_is_used_as_it_is():
    environments = make_environments(SameStep, 3)
    assert isinstance(environments, GymnasiumVector)
    np.testing.assert_array_equal(environments.reset(), np.zeros((3, 1)))
    environments.step(np.zeros(3, np.int64))
    step = environments.step(np.zeros(3, np.int64))
    np.testing.assert_array_equal(step.ended, [0, 1])
    np.testing.assert_array_equal(step.observations, [[0], [0], [2]])
    np.testing.assert_array_equal(step.final_observations, [[1], [2]])
    np.testing.assert_array_equal(environments.restore(environments.state()), np.zeros((3, 1)))


def test_mistakes_are_named_with_their_remedies() -> None:
    class NextStep(SameStep):
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    refused(lambda: make_environments(NextStep, 2), "'NextStep' has the autoreset mode NEXT_STEP; give it SAME_STEP")

    class Locked(Counting):
        def reset(self, *, seed=None):
            raise OSError("the door is locked")

    class Wide(Counting):
        observation_space = rl.box((3,))

    refused(lambda: make_environments(Locked, 1).reset(), "'Locked'", "door is locked", error=RunError)
    refused(lambda: make_environments(Wide, 1).reset(), r"shape \(2,\), but its observation_space has the shape \(3,")
    message = r"is made already: .*CartPole.*; give its name, or a class or function .* lambda: gymnasium.make"
    for made in (gymnasium.make("CartPole-v1"), gymnasium.make_vec("CartPole-v1", num_envs=2)):
        with pytest.raises(UserError, match=message):
            make_environments(made, 2)
    refused(lambda: make_environments(None, 1), "the environment is None; give its name")
    for count in (1, 20):
        with pytest.raises(UserError, match="'CartPole-v1' cannot be made: TypeError: .*'gravity_of_mars'"):
            make_environments("CartPole-v1", count, gravity_of_mars=3.7)
    refused(lambda: make_environments(dict, 1), "is a dict, which lacks observation_space; define it")
    refused(lambda: make_environments(Counting, 1, size=3), "'Counting' cannot be made: TypeError: .*'size'")
    for count in (0, 2.5, "8"):
        with pytest.raises(UserError, match=f"number of environments is {count!r}; give a whole number of at least 1"):
            make_environments(Counting, count)  # type: ignore[arg-type]
    refused(lambda: make_environments(Counting, 2).step(np.zeros(3, np.int64)), "'Counting'", r"these have \(3,\)")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v9", "no environment 'CartPole-v9'; did you mean 'CartPole-v"),
        ("Cartpole-v1", "did you mean 'CartPole-v1'"),
        ("Nothing-Like-It", r'@dsinga.register\("environment", "Nothing-Like-It"\)'),
        ("ALE/Pong-v5", "environment 'ALE/Pong-v5' is not installed; it is in the package ale-py: pip install ale-py"),
        ("Unheard/Of-v1", "package of the environment 'Unheard/Of-v1' is not installed; install it"),
        ("phys2d/CartPole-v1", "needs a package that is not installed: .*jax"),
        ("nothing:Here-v0", "cannot be imported: No module named 'nothing'"),
        ("LunarLander-v3", r"needs a package that is not installed: .*gymnasium\[box2d\]"),
    ],
)
def test_an_environment_that_is_not_there_is_refused(name, message, monkeypatch):
    refuse(monkeypatch, "Box2D", "jax", "ale_py", "minatar")
    refused(lambda: make_environments(name, 1), message)


def refuse(monkeypatch, *names):
    """Make imports of packages fail as if they were not installed."""
    real = builtins.__import__

    def refusing(name, *arguments, **keywords):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refusing)


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    refuse(monkeypatch, "gymnasium")
    refused(lambda: make_environments("CartPole-v1", 1), r"'CartPole-v1' .* not installed: pip install 'dsinga\[rl\]'")
    environments = make_environments(Counting, 2)  # a class of one's own does not need it
    assert environments.reset().shape == (2, 2)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ValueError("no more"), "environment 11 of 'Failing' raised ValueError in step 2 of its episode 0: no more"),
        (float("nan"), "environment 11 of 'Failing' gave the reward nan in step 2 since all were reset"),
        (float("-inf"), "environment 11 of 'Failing' gave the reward -inf"),
    ],
)
def test_an_environment_that_fails_is_named_with_its_step(fault, message):
    Failing.made = 0
    environments = make_environments(Failing, 2, first=10, fault=fault)
    environments.reset()
    environments.step(np.array([0, 0]))
    with pytest.raises(RunError, match=message) as caught:
        environments.step(np.array([0, 0]))
    assert not isinstance(fault, Exception) or caught.value.__cause__ is fault


def changed(name, *, reset=None, step=None):
    """Return a class of environments in which a function changes what a method of Counting returns."""
    methods = {"reset": lambda self, *, seed=None: reset(Counting.reset(self, seed=seed))} if reset else {}
    if step:
        methods["step"] = lambda self, action: step(*Counting.step(self, action))
    return type(name, (Counting,), methods)


class WithoutSeed(Counting):
    def reset(self):
        return super().reset(seed=0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (changed("OldReset", reset=lambda pair: pair[0]), "'OldReset' returned a ndarray; return observation, info,"),
        (WithoutSeed, r"of the environment 'WithoutSeed' takes no seed; define reset\(self, \*, seed=None, options"),
        (
            changed("OldStep", step=lambda observation, reward, end, _, info: (observation, reward, end, info)),
            "step of the environment 'OldStep' returned 4 values; return observation, reward, terminated, trunc",
        ),
        (
            changed("NoReward", step=lambda observation, _, *rest: (observation, None, *rest)),
            "step of environment 0 of 'NoReward' returned the reward None; return a number",
        ),
        (
            changed("ArrayReward", step=lambda observation, reward, *rest: (observation, np.array([reward]), *rest)),
            r"step of environment 0 of 'ArrayReward' returned the reward array\(\[3.\]\); return a number",
        ),
        (
            changed("OneNumber", step=lambda observation, *rest: (observation[:1], *rest)),
            r"'OneNumber' returned an observation of shape \(1,\), but its observation_space has the shape \(2,\)",
        ),
    ],
)
def test_an_environment_of_an_older_interface_is_refused(environment, message):
    def step_once():
        environments = make_environments(environment, 1)
        environments.reset()
        environments.step(np.array([3]))

    refused(step_once, message)


def test_seeds_of_episodes_do_not_collide():
    seeds = {episode_seed(s, i, e) for s in range(5) for i in range(40) for e in range(40)}
    assert len(seeds) == 8000
    assert all(0 <= seed < 2**31 for seed in seeds)
