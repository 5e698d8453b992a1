"""A contract of all faces that train: an interrupt keeps what was trained, says so, and training goes on from there."""

import _thread
import ctypes
import itertools
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn, rl
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier, Regressor, Transformer
from dsinga.extensions import EarlyStopping, EverySteps, Extension, KeepBest, LoopView
from tests.support.refusals import refused
from tests.support.rl_cases import actor_critic
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=60)
X = (RNG.normal(size=(60, 4)) + 3 * Y[:, None] * np.array([1, -1, 1, 0])).astype(np.float32)
AT = 20  # the step of the interrupt
ENDLESS: dict[str, Any] = {"epochs": 100_000, "batch_size": 30, "progress": False}


def interrupted_thread() -> None:
    """Let KeyboardInterrupt be raised in this thread, wherever it is then, as some notebooks do."""
    thread = ctypes.c_ulong(threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))


def raised() -> None:
    raise KeyboardInterrupt


KINDS: dict[str, Callable[[], None]] = {
    "signal": lambda: signal.raise_signal(signal.SIGINT), "interrupt_main": _thread.interrupt_main, "raised": raised,
    "asynchronous": interrupted_thread,
}  # fmt: skip


def interrupting(kind: str = "signal", times: int = 1) -> Callable[[int, dict[str, float]], None]:
    """Return a function of runs that interrupts them at a step, once."""
    left = itertools.repeat(KINDS[kind], times)

    def interrupt(step: int, metrics: dict[str, float]) -> None:
        if step >= AT and (act := next(left, None)):
            act()

    return interrupt


@dsinga.register("extension", "InterruptsEstimators")
class InterruptsEstimators(Extension):
    """Interrupts the first run of a job that names it, as an estimator has no argument for functions of runs."""

    has_acted = False

    def __init__(self, conf: Any):
        self.trigger = EverySteps(3)

    def run(self, loop: LoopView) -> None:
        if not type(self).has_acted:
            type(self).has_acted = True
            KINDS["signal"]()


def model(loss: str = "sparse_categorical_crossentropy") -> nn.Sequential:
    made = nn.Sequential([nn.Input(4), nn.Dense(8, activation="tanh"), nn.Dense(3)])
    made.compile(nn.Adam(0.01), loss)
    return made


def steps_in(message: str) -> int:
    found = re.match(r"(\d+) steps were done; ", message)
    assert found, message
    return int(found[1])


FITS: dict[str, dict[str, Any]] = {
    "alone": {}, "workers": {"workers": 2}, "servers": {"workers": 2, "cluster": nn.Cluster(workers=2, servers=2)},
    "workspace": {"workspace": "run"}, "validation": {"validation_data": (X[:20], Y[:20])}, "client": {},
}  # fmt: skip


@pytest.mark.parametrize(
    "face", [pytest.param(name, marks=pytest.mark.ci if name == "workers" else ()) for name in FITS]
)
def test_an_interrupted_fit_keeps_the_params_of_its_last_round(
    face: str, threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = FITS[face] | ({"client": threads} if face == "client" else {})
    made, unbroken = model(), model()
    with pytest.raises(KeyboardInterrupt) as caught:
        made.fit(X, Y, callbacks=interrupting(), **options, **ENDLESS)
    steps = steps_in(str(caught.value))
    assert steps >= AT
    assert "the model keeps their params" in str(caught.value)
    assert ("go on from run/checkpoint/step" in str(caught.value)) == (face == "workspace")
    assert made.result is not None
    assert made.result.step == steps
    assert made.result.history[-1]["step"] >= AT
    length = {"batch_size": 30, "progress": False, "train_steps": steps}
    unbroken.fit(X, Y, **options | {"workspace": None}, **length)
    assert_same(made.params, unbroken.params)
    assert made.predict(X).shape == (60, 3)
    for each in (made, unbroken):  # the optimizer's state was kept, too
        each.fit(X, Y, **options | {"workspace": None} | length | {"train_steps": 4})
    assert_same(made.params, unbroken.params)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_of_any_kind_leaves_a_model_that_goes_on(kind: str) -> None:
    made, messages = model(), []

    def fit() -> None:
        try:
            made.fit(X, Y, callbacks=interrupting(kind), **ENDLESS)
        except KeyboardInterrupt as interrupt:
            messages.append(str(interrupt))

    if kind == "asynchronous":
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join(60)
    else:
        fit()
    steps = steps_in(messages[0])
    assert steps >= AT
    unbroken = model()
    unbroken.fit(X, Y, batch_size=30, train_steps=steps, progress=False)
    assert_same(made.params, unbroken.params)
    made.fit(X, Y, epochs=1, progress=False)


def test_a_second_interrupt_ends_training_at_once_and_keeps_as_much() -> None:
    made = model()
    with pytest.raises(KeyboardInterrupt, match="the model keeps their params"):
        made.fit(X, Y, callbacks=[interrupting(), interrupting()], **ENDLESS)
    assert made.result is not None
    assert made.result.step == AT


@pytest.mark.parametrize("best", [KeepBest("val/loss"), EarlyStopping(patience=1000, restore_best_weights=True)])
@pytest.mark.parametrize("kind", ["signal", "raised"])
def test_an_interrupted_fit_keeps_the_best_params(best: Extension, kind: str) -> None:
    made = model()
    made.compile(nn.SGD(nn.PiecewiseConstantDecay([8], [0.1, 30.0])), "sparse_categorical_crossentropy")
    with pytest.raises(KeyboardInterrupt, match=r"the model keeps the best params; the params are those after 8 steps"):
        made.fit(X, Y, callbacks=[best, interrupting(kind)], validation_data=(X, Y), **ENDLESS)
    assert made.result is not None
    losses = made.result.history.history["val_loss"]
    assert made.evaluate(X, Y)["loss"] == pytest.approx(min(losses), rel=1e-5)


def test_a_fit_that_fails_keeps_what_was_trained() -> None:
    def fail(step: int, metrics: dict[str, float]) -> None:
        if step == AT:
            raise ZeroDivisionError

    made, unbroken = model(), model()
    with pytest.raises(ZeroDivisionError) as caught:
        made.fit(X, Y, callbacks=fail, **ENDLESS)
    assert f"{AT} steps were done; the model keeps their params" in caught.value.__notes__[0]
    unbroken.fit(X, Y, batch_size=30, train_steps=AT, progress=False)
    assert_same(made.params, unbroken.params)


ESTIMATORS: dict[str, tuple[type[Any], str]] = {
    "Classifier": (Classifier, "sparse_categorical_crossentropy"),
    "Regressor": (Regressor, "mse"),
    "Transformer": (Transformer, "mse"),
}


@pytest.mark.parametrize("place", ["here", pytest.param("client", marks=pytest.mark.ci)])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_interrupted_estimator_keeps_what_was_trained(kind: str, method: str, place: str, threads: Client) -> None:
    cls, loss = ESTIMATORS[kind]
    InterruptsEstimators.has_acted = False
    y = Y if cls is Classifier else np.eye(3)[Y]
    job = model(loss).job(X, y, epochs=1, batch_size=5).replace(extension=[{"user_type": "InterruptsEstimators"}])
    layer = {"layer": "dense"} if cls is Transformer else {}
    estimator, unbroken = (cls(job, epochs=1, random_state=0, **layer) for _ in range(2))
    options = {"client": threads} if place == "client" else {}
    with pytest.raises(KeyboardInterrupt, match="6 steps were done; the estimator keeps their params"):
        getattr(estimator, method)(X, y, **options)
    assert [row["step"] for row in estimator.history_] in ([], [3], [6])
    apply = "transform" if cls is Transformer else "predict"
    assert len(getattr(estimator, apply)(X)) == 60
    InterruptsEstimators.has_acted = True
    unbroken.set_params(net=job.replace(epochs=0, train_steps=6), epochs=None)
    unbroken.fit(X, y, **options)
    assert_same(estimator.params_, unbroken.params_)
    if place == "here":
        for each in (estimator, unbroken):
            each.partial_fit(X, y)
        assert_same(estimator.params_, unbroken.params_)


def test_interrupted_runs_without_a_model_keep_a_checkpoint(tmp_path: Path) -> None:
    job = model().job(X, Y, epochs=100_000, batch_size=30)
    with pytest.raises(KeyboardInterrupt, match="go on from .*with resume=True"):
        dsinga.train(job, workspace=tmp_path, progress=False, extensions=interrupting())
    step = max(int(path.name[4:]) for path in (tmp_path / "checkpoint").iterdir())
    resumed = dsinga.train(job.replace(epochs=step), workspace=tmp_path, resume=True, progress=False)
    assert_same(resumed.params, dsinga.train(job.replace(epochs=step), progress=False).params)


def test_an_interrupted_agent_keeps_what_it_has_learnt() -> None:
    spaces = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))
    agent, before = (rl.Agent(rl.PPO(actor_critic(), spaces, seed=0)) for _ in range(2))
    options: dict[str, Any] = {"environments": 4, "rollout_steps": 16, "evaluation_episodes": 0, "log_every": 64}
    with pytest.raises(KeyboardInterrupt):
        rl.train(agent, "CartPole-v1", steps=10**6, progress=False, extensions=interrupting(), **options)
    learnt = agent.algorithm.params
    assert any((learnt[name] != array).any() for name, array in before.algorithm.params.items())
    assert agent.predict(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.parametrize("resume", [True, "auto", "path"])
def test_a_fit_resumes_as_a_run_does(resume: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 30, "progress": False, "workspace": tmp_path / "run"}
    unbroken, first, second = model(), model(), model()
    unbroken.fit(X, Y, epochs=6, **options | {"workspace": None})
    if resume == "auto":
        first.fit(X, Y, epochs=2, resume=resume, **options)  # there is nothing to resume: it begins
    else:
        first.fit(X, Y, epochs=2, **options)
    resume = tmp_path / "run" / "checkpoint" / "step4" if resume == "path" else resume
    for each in (second, first):  # in another process, and in this one
        history = each.fit(X, Y, epochs=6, resume=resume, **options)
        assert [row["step"] for row in history] == [2, 4, 6, 8, 10, 12]
        assert_same(each.params, unbroken.params)
    assert not (tmp_path / "run" / "run-1").exists()
    nothing_left = model()
    nothing_left.fit(X, Y, epochs=6, resume=True, **options)
    for each in (unbroken, first, second, nothing_left):
        each.fit(X, Y, epochs=2, **options | {"workspace": None})
        assert_same(each.params, unbroken.params)


def test_a_job_may_say_that_it_resumes(tmp_path: Path) -> None:
    job = model().job(X, Y, epochs=2, batch_size=30)
    options: dict[str, Any] = {"workspace": tmp_path / "run", "progress": False}
    dsinga.train(job, **options)
    longer = job.replace(epochs=4, resume=True)
    result = dsinga.train(longer, **options)
    assert (result.history[0]["step"], result.step, result.job.resume) == (2, 8, False)
    assert_same(result.params, dsinga.train(job.replace(epochs=4), progress=False).params)
    search = dsinga.search(longer, {"seed": [1]}, workspace=tmp_path / "search", monitor="train/loss", progress=False)
    assert search.best["steps"] == 8
    with pytest.raises(UserError, match="there is no checkpoint to resume from"):
        dsinga.train(longer, workspace=tmp_path / "empty", progress=False)
    refused(lambda: Classifier(longer).fit(X, Y), "an estimator begins with its", "leave resume out")


def test_a_model_takes_the_params_of_a_result() -> None:
    made, fitted = model(), model()
    made.params = dsinga.train(made.job(X, Y, epochs=3), progress=False)
    fitted.fit(X, Y, epochs=3, progress=False)
    assert_same(made.params, fitted.params)
    np.testing.assert_array_equal(made.predict(X), fitted.predict(X))
