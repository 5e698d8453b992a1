"""Measure whole runs of small nets: ``python -m tools.benchmarks.small_runs RUN 1`` prints the time of each.

A classifier learns scikit-learn's digits here and in scikit-learn: 64 hidden units, 20 epochs in batches of 32 by Adam.
Agents learn CartPole by the job files of datasets/cartpole, for a fixed number of steps.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import dsinga
from dsinga.estimators import Classifier
from tools.benchmarks.small_nets import RATES, print_turns, repeated

HIDDEN, EPOCHS, BATCH = (64,), 20, 32
FEW_TESTS = ("test_freq=20000", "reinforcement.evaluation_episodes=5", "reinforcement.stop_return=501")


def digits(classifier: Any) -> Callable[[], object]:
    """Return a function that fits a classifier to the digits."""
    x, y = load_digits(return_X_y=True)
    return functools.partial(classifier.fit, (x / 16).astype("float32"), y)


def ours() -> Callable[[], object]:
    """Return a function that fits the classifier of dsinga."""
    settings: dict[str, Any] = {"learning_rate": RATES["adam"], "weight_decay": 0, "random_state": 0}
    return digits(Classifier(hidden=HIDDEN, epochs=EPOCHS, batchsize=BATCH, **settings))


def theirs() -> Callable[[], object]:
    """Return a function that fits the classifier of scikit-learn, for as many epochs."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    settings: dict[str, Any] = {"alpha": 0, "tol": 0, "n_iter_no_change": EPOCHS, "random_state": 0}
    return digits(MLPClassifier(HIDDEN, batch_size=BATCH, max_iter=EPOCHS, **settings))


def cartpole(name: str, steps: int) -> Callable[[], object]:
    """Return a function that trains an agent by a job file for so many steps of its environments."""
    job = dsinga.load(f"datasets/cartpole/{name}.conf", [f"train_steps={steps}", *FEW_TESTS])
    return lambda: dsinga.train(job, progress=False)


RUNS: dict[str, Callable[[], Callable[[], object]]] = {
    "classifier-fit": ours,
    "scikit-learn": theirs,
    "cartpole-ppo": lambda: cartpole("ppo", 40960),
    "cartpole-dqn": lambda: cartpole("dqn", 20000),
}


if __name__ == "__main__":
    run = RUNS[sys.argv[1]]()
    run()
    print_turns(repeated(run), 1)
