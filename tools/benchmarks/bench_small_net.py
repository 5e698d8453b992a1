"""What the engine adds to the kernels of a small net: ``python -m tools.benchmarks.bench_small_net``.

The net is that of DQN in Young and Tian 2019, "MinAtar": images 10 x 10 x 4, a convolution of 16 filters 3 x 3, 128
units, 6 outputs; batches of 32, RMSProp. Microseconds of the thread's processor time on one core, in turn in one
process: an iteration of the training loop on records in memory; its kernels in sequence, by the interface of
``dsinga.ops``, and its seven products alone; the same iteration in eager PyTorch; an update of DQN here and in PyTorch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import click  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from dsinga import nn, rl  # noqa: E402
from dsinga.addons.planner.benchmark import SilentObserver  # noqa: E402
from dsinga.job import Job  # noqa: E402
from dsinga.loop.initial_state import RunOptions  # noqa: E402
from dsinga.loop.local_run import continue_locally  # noqa: E402
from dsinga.ops import get_ops  # noqa: E402
from dsinga.rl.experience import Transitions  # noqa: E402
from dsinga.training import create_updater  # noqa: E402
from tools.benchmarks.__main__ import processor  # noqa: E402

IMAGE, ACTIONS, BATCH, RECORDS, UPDATES = (4, 10, 10), 6, 32, 1024, 200
RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.integers(0, 2, (RECORDS, *IMAGE), np.uint8), RNG.integers(0, ACTIONS, RECORDS)


def layers() -> tuple[Any, Any]:
    """Return the input and the output of the net."""
    x = nn.Input(shape=IMAGE, name="observation")
    hidden = nn.Flatten()(nn.Conv2D(16, 3, activation="relu")(x))
    return x, nn.Dense(ACTIONS)(nn.Dense(128, activation="relu")(hidden))


def updater() -> Any:
    """Return the updater of the net."""
    return nn.RMSprop(2.5e-4, rho=0.95, epsilon=1e-4)


def job() -> Job:
    """Return the job that trains the net to classify the images."""
    model = nn.Model(*layers())
    model.compile(updater(), "sparse_categorical_crossentropy")
    return model.job(IMAGES, LABELS, batch_size=BATCH, train_steps=1)


def train(steps: int) -> float:
    """Return the seconds of processor time of a run."""
    started = time.thread_time()
    continue_locally(job().replace(train_steps=steps), SilentObserver(), RunOptions(), max_threads=1)
    return time.thread_time() - started


def iteration() -> float:
    """Return the microseconds of an iteration in the training loop, without the beginning and the end of a run."""
    return 1e6 * (train(2 * UPDATES) - train(UPDATES)) / UPDATES


def kernels(products_only: bool) -> Callable[[], Any]:
    """Return a function that computes the kernels of an iteration, or the seven products alone."""
    ops, step, square = get_ops(), (1, 1), (0, 0)
    shapes = {"k": (16, 4, 3, 3), "kb": (16,), "w": (128, 1024), "b": (128,), "v": (ACTIONS, 128), "c": (ACTIONS,)}
    params = {name: RNG.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
    k, kb, w, b, v, c = params.values()
    rmsprop = create_updater(updater())
    small = ["k", "kb", "b", "v", "c"]
    flat = [np.concatenate([params[name].ravel() for name in small]), params["w"].reshape(-1)]
    states = [rmsprop.create_state(array.size) for array in flat]
    images, labels = IMAGES[:BATCH], LABELS[:BATCH]
    converted = ops.images(images)
    joined, rows = np.zeros_like(flat[0]), converted.shape[0]
    ops.set_threads(1)

    def products() -> None:
        convolved = ops.convolution(converted, k, kb, step, square)
        flattened = ops.flatten(convolved)
        hidden = ops.inner_product(flattened, w, b)
        scores = ops.inner_product(hidden, v, c)
        dhidden, _, _ = ops.inner_product_grad(hidden, v, scores, False, True, True)
        dflat, _, _ = ops.inner_product_grad(flattened, w, dhidden, False, True, True)
        ops.convolution_grad(converted, k, ops.unflatten(dflat, convolved.shape), step, square, False, True)

    def every() -> None:
        x = ops.images(images)
        convolved = ops.relu(ops.convolution(x, k, kb, step, square))
        flattened = ops.flatten(convolved)
        hidden = ops.relu(ops.inner_product(flattened, w, b))
        p, _, _ = ops.softmax_loss(ops.inner_product(hidden, v, c), labels, 1)
        dscores = ops.softmax_loss_grad(p, labels, 1 / rows)
        dhidden, *_ = ops.inner_product_grad(hidden, v, dscores, False, True, True)
        dflat, dw, _ = ops.inner_product_grad(flattened, w, ops.relu_grad(hidden, dhidden), False, True, True)
        rmsprop.update(0, flat[1], dw.reshape(-1), states[1])
        dconvolved = ops.relu_grad(convolved, ops.unflatten(dflat, convolved.shape))
        ops.convolution_grad(x, k, dconvolved, step, square, False, True)
        rmsprop.update(0, flat[0], joined, states[0])

    return products if products_only else every


def torch_net() -> torch.nn.Sequential:
    """Return the net."""
    hidden = [torch.nn.Conv2d(IMAGE[0], 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1024, 128)]
    return torch.nn.Sequential(*hidden, torch.nn.ReLU(), torch.nn.Linear(128, ACTIONS))


def torch_iteration() -> Callable[[], Any]:
    """Return a function that does an iteration in PyTorch, on a batch at hand."""
    net = torch_net()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4, alpha=0.95, eps=0.01)
    images, labels = torch.from_numpy(IMAGES[:BATCH]), torch.from_numpy(LABELS[:BATCH])

    def iterate() -> float:
        loss = torch.nn.functional.cross_entropy(net(images.float()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return iterate


def transitions() -> Transitions:
    """Return a batch of random transitions."""
    ones, ended = np.ones(BATCH, np.float32), RNG.random(BATCH) < 0.05
    return Transitions(
        *(IMAGES[:BATCH], LABELS[:BATCH], ones, IMAGES[BATCH : 2 * BATCH], ended, ones, np.arange(BATCH), 0.99 * ones)
    )


def dqn() -> Callable[[], Any]:
    """Return a function that does an update of DQN."""
    spaces = rl.Spaces(rl.box(IMAGE, 0, 1, np.uint8), rl.DiscreteSpace(ACTIONS))
    algorithm = rl.DQN(rl.Model(nn.Model(*layers())), spaces, updater=updater(), target_every=1000)
    batch = transitions()
    return lambda: algorithm.learn(batch)


def torch_dqn() -> Callable[[], Any]:
    """Return a function that does the update in PyTorch, in the form of MinAtar's ``examples/dqn.py``."""
    net, target = torch_net(), torch_net()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4, alpha=0.95, eps=0.01)
    batch = transitions()
    states, following = (torch.from_numpy(array).float() for array in (batch.observations, batch.next_observations))
    actions, rewards = torch.from_numpy(batch.actions)[:, None], torch.from_numpy(batch.rewards)[:, None]
    goes_on = torch.from_numpy(np.flatnonzero(~batch.terminated))

    def update() -> None:
        values = net(states).gather(1, actions)
        next_values = torch.zeros(BATCH, 1)
        next_values[goes_on] = target(following.index_select(0, goes_on)).detach().max(1)[0].unsqueeze(1)
        loss = torch.nn.functional.smooth_l1_loss(rewards + 0.99 * next_values, values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return update


def microseconds(call: Callable[[], Any]) -> float:
    """Return the median processor time of a call."""
    times = []
    for _ in range(UPDATES):
        started = time.thread_time()
        call()
        times.append(time.thread_time() - started)
    return 1e6 * statistics.median(times)


@click.command()
@click.option("--turns", default=9, show_default=True, type=click.IntRange(1))
def main(turns: int) -> None:
    """Print the median over turns of each figure, and the cost of the engine."""
    torch.set_num_threads(1)
    calls = {
        "products": kernels(products_only=True),
        "kernels": kernels(products_only=False),
        "PyTorch": torch_iteration(),
        "update of DQN": dqn(),
        "update of DQN, PyTorch": torch_dqn(),
    }
    figures: dict[str, list[float]] = {"iteration": [], **{label: [] for label in calls}}
    for turn in range(turns + 1):
        measured = {"iteration": iteration()} | {label: microseconds(call) for label, call in calls.items()}
        for label, value in measured.items():
            if turn:  # the first warms up
                figures[label].append(value)
    click.echo(f"{processor()}, load {os.getloadavg()[0]:.1f}, PyTorch {torch.__version__}, us, medians of {turns}")
    medians = {label: statistics.median(values) for label, values in figures.items()}
    for label, value in medians.items():
        click.echo(f"{label:24}{value:8.0f}")
    click.echo(f"{'engine':24}{medians['iteration'] - medians['kernels']:8.0f}  iteration - kernels")


if __name__ == "__main__":
    main()
