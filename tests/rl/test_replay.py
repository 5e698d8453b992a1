"""Replay memories beside plain lists of transitions, and prioritised draws beside their definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga import rl
from dsinga.base.errors import UserError
from dsinga.checkpoint.tensor_files import insert_arrays, separate_arrays
from dsinga.rl.replay_memory import PrioritizedReplay, ReplayMemory, SumTree
from tests.support.refusals import refused

SPACES = rl.Spaces(rl.box((2,)), rl.DiscreteSpace(7))


class Stream:
    """Random steps of environments, each observation of its own, and the transitions as plain lists."""

    def __init__(self, count, seed, spaces=SPACES, rate=0.15):
        self.count, self.rng, self.spaces, self.rate = count, np.random.default_rng(seed), spaces, rate
        self.numbers = 0
        self.observations = self.fresh(count)
        self.steps = [[] for _ in range(count)]  # (observation, action, reward, next, terminated, truncated)

    def fresh(self, count):
        self.numbers += count
        numbers = np.arange(self.numbers - count, self.numbers)
        shape = (count, *[1] * len(self.spaces.observation.shape))
        full = np.broadcast_to(numbers.reshape(shape), (count, *self.spaces.observation.shape))
        return full.astype(self.spaces.observation.dtype)

    def put(self, memory):
        rng, before, following = self.rng, self.observations, self.fresh(self.count)
        terminated, truncated = rng.random(self.count) < self.rate, rng.random(self.count) < self.rate
        ended = np.flatnonzero(terminated | truncated)
        finals = self.fresh(len(ended))
        step = rl.EnvironmentStep(
            following, rng.normal(size=self.count).astype(np.float32), terminated, truncated, ended, finals
        )
        actions = rng.integers(0, 7, self.count)
        memory.add(before, actions, step)
        for i in range(self.count):
            after = step.next_observations()[i]
            self.steps[i].append((before[i], actions[i], step.rewards[i], after, terminated[i], truncated[i]))
        self.observations = following


def expected_transition(steps, start, n, discount):
    """The transition of n steps from number ``start``, by its definition."""
    total, factor = 0.0, 1.0
    for step in steps[start : start + n]:
        _, _, reward, following, terminated, truncated = step
        total += factor * reward
        factor *= discount
        if terminated or truncated:
            break
    return (*steps[start][:2], total, following, terminated, factor)


def check(memory, stream, batch, n, discount):
    """Compare each transition of a batch with one of the stream that the memory may still have."""
    capacity = memory.capacity // stream.count
    for k in range(len(batch.indices)):
        environment = batch.indices[k] % stream.count
        steps = stream.steps[environment]
        kept = range(max(0, len(steps) - capacity), len(steps))
        start = next(t for t in kept if np.array_equal(steps[t][0], batch.observations[k]))
        _, action, reward, following, terminated, factor = expected_transition(steps, start, n, discount)
        assert batch.actions[k] == action
        assert batch.rewards[k] == pytest.approx(reward, abs=1e-5)
        assert batch.terminated[k] == terminated
        assert batch.discounts[k] == pytest.approx(factor, rel=1e-5)
        if not terminated:
            np.testing.assert_array_equal(batch.next_observations[k], following)


@given(
    count=st.integers(1, 4),
    rows=st.integers(1, 9),
    steps=st.integers(1, 30),
    n=st.integers(1, 4),
    seed=st.integers(0, 100),
    kind=st.sampled_from([ReplayMemory, PrioritizedReplay]),
)
def test_batches_are_transitions_of_the_latest_steps(count, rows, steps, n, seed, kind):
    memory = kind(SPACES, rows * count + count // 2, count=count, n=n, discount=0.9)
    stream, rng = Stream(count, seed), np.random.default_rng(seed)
    for _ in range(steps):
        stream.put(memory)
        check(memory, stream, memory.sample(8, rng), n, 0.9)
    assert len(memory) == min(steps, rows) * count
    batch = memory.sample(60 * len(memory), rng)
    assert len(np.unique(batch.indices)) == len(memory)
    check(memory, stream, batch, n, 0.9)
    assert len(memory._finals) <= len(memory)


@given(
    count=st.integers(1, 3),
    parts=st.integers(1, 5),
    steps=st.integers(1, 4),
    n=st.integers(1, 3),
    seed=st.integers(0, 100),
    kind=st.sampled_from([ReplayMemory, PrioritizedReplay]),
)
def test_the_steps_of_other_memories_are_cut_off_where_these_end(count, parts, steps, n, seed, kind):
    memory = kind(SPACES, 7 * count, count=count, n=n, discount=0.9)
    batches = []
    for number in range(parts):
        part, stream = ReplayMemory(SPACES, steps * count, count=count, n=n, discount=0.9), Stream(count, seed + number)
        for _ in range(steps):
            stream.put(part)
        indices = memory.extend(part.state())
        batches.append(part.all())
        np.testing.assert_array_equal(memory.all().indices[-len(indices) :], indices)
    everything = memory.all()
    for name in ("observations", "actions", "rewards", "terminated", "discounts"):
        expected = np.concatenate([getattr(batch, name) for batch in batches])[-7 * count :]
        np.testing.assert_array_equal(getattr(everything, name), expected)
    following = np.concatenate([batch.next_observations for batch in batches])[-7 * count :]
    counts = ~everything.terminated  # after an episode that ended by itself nothing follows
    np.testing.assert_array_equal(everything.next_observations[counts], following[counts])


def test_draws_are_uniform():
    memory, stream = ReplayMemory(SPACES, 12, count=3), Stream(3, 0)
    for _ in range(7):
        stream.put(memory)
    indices = memory.sample(12000, np.random.default_rng(0)).indices
    _, frequencies = np.unique(indices, return_counts=True)
    assert len(frequencies) == 12
    assert np.all(np.abs(frequencies - 1000) < 5 * np.sqrt(1000))


def test_images_are_kept_once_as_uint8():
    spaces = rl.Spaces(rl.box((3, 8, 8), 0, 255, np.uint8), rl.DiscreteSpace(2))
    memory, stream = ReplayMemory(spaces, 100), Stream(1, 0, spaces, rate=0)
    for _ in range(250):
        stream.put(memory)
    arrays = memory._arrays()
    assert arrays["observations"].nbytes == 101 * 3 * 64  # once, and those after the newest step
    batch = memory.sample(32, np.random.default_rng(0))
    assert batch.observations.dtype == batch.next_observations.dtype == np.uint8
    assert batch.observations.shape == (32, 3, 8, 8)
    assert batch.terminated.dtype == bool
    assert batch.actions.dtype == batch.indices.dtype == np.int64
    assert batch.rewards.dtype == batch.weights.dtype == batch.discounts.dtype == np.float32
    np.testing.assert_array_equal(batch.weights, 1)


@pytest.mark.parametrize("kind", [ReplayMemory, PrioritizedReplay])
@pytest.mark.parametrize("steps", [0, 3, 6, 20])
def test_a_restored_memory_goes_on_with_the_same_batches(kind, steps):
    memory, stream = kind(SPACES, 12, count=2, n=2), Stream(2, 3, rate=0.4)
    for _ in range(steps):
        stream.put(memory)
    if kind is PrioritizedReplay and steps:
        batch = memory.sample(5, np.random.default_rng(0))
        memory.update_priorities(batch.indices, np.arange(5) * 2.0)
        memory.beta = 0.7
    data, arrays = separate_arrays(memory.state())
    resumed = kind(SPACES, 12, count=2, n=2)
    resumed.restore(insert_arrays(data, {name: array.copy() for name, array in arrays.items()}))
    assert len(resumed) == len(memory)
    for _ in range(9):
        state = stream.rng.bit_generator.state
        before, numbers = stream.observations, stream.numbers
        stream.put(memory)
        stream.rng.bit_generator.state, stream.observations, stream.numbers = state, before, numbers
        stream.put(resumed)
        batch, again = memory.sample(16, np.random.default_rng(1)), resumed.sample(16, np.random.default_rng(1))
        for name, array in vars(batch).items():
            np.testing.assert_array_equal(array, getattr(again, name), err_msg=name)


def test_mistakes_are_named_with_their_remedies() -> None:
    memory, stream = ReplayMemory(SPACES, 6), Stream(1, 0)
    for steps in range(1, 9):
        stream.put(memory)
        larger = ReplayMemory(SPACES, 20)
        if steps <= 6:
            larger.restore(memory.state())
            check(larger, stream, larger.sample(20, np.random.default_rng(0)), 1, 0.99)
            if steps > 2:
                refused(lambda: ReplayMemory(SPACES, 2).restore(memory.state()), "number of environments and cap")
        else:
            with pytest.raises(UserError, match="the saved replay memory has observations of shape"):
                larger.restore(memory.state())
    refused(lambda: ReplayMemory(SPACES, 6, count=2).restore(memory.state()), "environment, number of environments")
    refused(lambda: ReplayMemory(SPACES, 3, count=4), "3 transitions of 1 steps from 4 environments")
    refused(lambda: ReplayMemory(SPACES, 10**13), "of 10{13} transitions has no room: .*; lower its capacity")
    refused(lambda: ReplayMemory(SPACES, 10**18), "of 10{18} transitions has no room: .*; lower its capacity")
    refused(lambda: ReplayMemory(SPACES, 3, n=0), "of 0 steps")
    for memory in (ReplayMemory(SPACES, 3), PrioritizedReplay(SPACES, 3)):
        with pytest.raises(UserError, match="is empty; put steps into it"):
            memory.sample(2, np.random.default_rng(0))


@given(st.integers(1, 300), st.integers(0, 1000))
def test_a_sum_tree_finds_items_as_a_search_in_cumulative_sums_does(size, seed):
    rng, tree = np.random.default_rng(seed), SumTree(size)
    weights = np.zeros(size)
    for _ in range(3):
        items = rng.choice(size, rng.integers(1, size + 1), replace=False)
        weights[items] = rng.integers(0, 5, len(items))  # whole numbers: sums are exact in any order
        tree.set(items, weights[items])
        assert tree.total == weights.sum()
        np.testing.assert_array_equal(tree.weights(slice(size)), weights)
        if tree.total:
            points = np.append(rng.random(50) * tree.total, [0, tree.total, np.nextafter(tree.total, 0)])
            expected = np.searchsorted(np.cumsum(weights), np.minimum(points, points[-1]), side="right")
            np.testing.assert_array_equal(tree.find(points), expected)
            assert np.all(weights[tree.find(points)] > 0)


def test_the_levels_of_a_large_sum_tree():
    tree = SumTree(64 * 64 + 1)
    tree.set(np.array([0, 64, 4096]), np.array([1.0, 2.0, 4.0]))
    np.testing.assert_array_equal(tree.find(np.array([0.5, 1.0, 2.9, 3.0, 6.9])), [0, 64, 64, 4096, 4096])


def test_transitions_are_drawn_by_their_priorities_with_weights_that_correct_for_it():
    memory, stream = PrioritizedReplay(SPACES, 4, alpha=0.5, beta=0.8, floor=0.01), Stream(1, 0)
    for _ in range(4):
        stream.put(memory)
    errors = np.array([0.0, -1.0, 4.0, 9.0])
    memory.update_priorities(np.arange(4), errors)
    priorities = np.sqrt(np.abs(errors) + 0.01)
    probabilities = priorities / priorities.sum()
    batch = memory.sample(20000, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(batch.indices, minlength=4) / 20000, probabilities, atol=1e-3)
    weights = (4 * probabilities) ** -0.8
    np.testing.assert_allclose(batch.weights, (weights / weights.max())[batch.indices], rtol=1e-5)
    # A new transition has the largest priority so far; it replaces the oldest one.
    stream.put(memory)
    priorities = np.array([priorities[1], priorities[2], priorities[3], priorities[3]])
    frequencies = np.bincount(memory.sample(20000, np.random.default_rng(1)).indices, minlength=5)
    assert frequencies[0] == 0
    np.testing.assert_allclose(frequencies[1:] / 20000, priorities / priorities.sum(), atol=1e-3)


def test_priorities_of_replaced_transitions_are_left_alone():
    memory, stream = PrioritizedReplay(SPACES, 3), Stream(1, 0)
    for _ in range(3):
        stream.put(memory)
    stream.put(memory)  # transition 0 is gone; its place has the observation after the newest step
    memory.update_priorities(np.array([0, 1]), np.array([1000.0, 1.0]))
    assert 0 not in memory.sample(500, np.random.default_rng(0)).indices
    refused(lambda: memory.update_priorities(np.array([1]), np.array([np.nan])), "errors are not finite")
