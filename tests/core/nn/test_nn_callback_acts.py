"""What a callback does to the model: acts x events x faces, held to stochastic gradient descent by hand."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import UserError, nn
from dsinga import extensions as callbacks
from dsinga.checkpoint.tensor_files import read_safetensors
from tests.support.refusals import refused_with

RATE, EPOCHS, STEPS = 0.1, 3, 2
RECORD, TARGET = np.array([0.5, -1.0, 2.0], np.float32), np.array([1.0, -2.0], np.float32)
X, Y = np.repeat(RECORD[None], 8, 0), np.repeat(TARGET[None], 8, 0)  # alike, so that the order does not matter
FIRST = [np.arange(6, dtype=np.float32).reshape(2, 3) / 8, np.array([0.25, -0.25], np.float32)]
OTHER = [np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), np.array([0.5, 1.5], np.float32)]
PAUSED = ["on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"]
BATCHES = ["on_train_batch_begin", "on_train_batch_end"]
OTHERS = ["on_train_begin", "on_train_end", "on_epoch_begin", "on_train_batch_begin"]

Weights = list[np.ndarray]


def made(optimizer: Any = None) -> nn.Sequential:
    model = nn.Sequential([nn.Input(3), nn.Dense(2, name="dense")])
    model.compile(optimizer or nn.SGD(RATE), "mse")
    model.set_weights(FIRST)
    return model


def stepped(weights: Weights) -> Weights:
    """Return the weights after a step of gradient descent on the mean of squares over outputs."""
    error = weights[0] @ RECORD + weights[1] - TARGET  # 2 outputs: the factor 2 / 2 is 1
    return [weights[0] - RATE * np.outer(error, RECORD), weights[1] - RATE * error]


def write_params(model: Any, path: Path) -> None:
    source = made()
    source.set_weights(OTHER)
    source.save_weights(path / "other.safetensors")
    model.load_weights(path / "other.safetensors")


def halved(weights: Weights) -> Weights:
    return [array / 2 for array in weights]


# What each does to the model, and to the weights by hand.
ACTS: dict[str, tuple[Callable[[Any, Path], Any], Callable[[Weights], Weights]]] = {
    "set_weights": (lambda model, path: model.set_weights(OTHER), lambda weights: OTHER),
    "params": (lambda model, _: setattr(model, "params", dict(zip(model.params, OTHER, strict=True))), lambda w: OTHER),
    "a_param": (lambda model, path: setattr(model, "params", {"dense_bias": OTHER[1]}), lambda w: [w[0], OTHER[1]]),
    "layer": (lambda model, path: model.layers[0].set_weights(OTHER), lambda weights: OTHER),
    "assign": (lambda model, _: [*map(lambda w, v: w.assign(v), model.weights, OTHER)], lambda w: OTHER),
    "load_weights": (write_params, lambda weights: OTHER),
    "train_on_batch": (lambda model, path: model.train_on_batch(X, Y), stepped),
    "halved": (lambda model, _: model.set_weights(halved(model.get_weights())), halved),
}


def events_of(epochs: int = EPOCHS) -> Iterator[str]:
    """Yield the events of Keras in order, and "step" for each step."""
    yield "on_train_begin"
    for _ in range(epochs):
        yield "on_epoch_begin"
        for _ in range(STEPS):
            yield from ("on_train_batch_begin", "step", "on_train_batch_end")
        yield "on_epoch_end"
    yield "on_train_end"


class Acting(callbacks.Callback):
    """Notes the weights at each event, and acts at each second one of a kind, at the only one of training."""

    def __init__(self, event: str, act: Callable[[Any], Any], seen: list[str]):
        self.weights: list[Weights] = []
        self._counts = dict.fromkeys(seen, 0)
        for name in seen:
            setattr(self, name, self._method(name, event, act))

    def _method(self, name: str, event: str, act: Callable[[Any], Any]) -> Any:
        def method(*arguments: Any) -> None:
            self._counts[name] += 1
            if name == event and (self._counts[name] == 2 or "train_" in name and "batch" not in name):
                act(self.model)
            self.weights.append(self.model.get_weights())

        return method


def by_hand(event: str, act: Callable[[Weights], Weights], seen: list[str]) -> list[Weights]:
    weights, counts, noted = FIRST, dict.fromkeys([*PAUSED, *BATCHES], 0), []
    for name in events_of():
        if name == "step":
            weights = stepped(weights)
            continue
        counts[name] += 1
        if name == event and (counts[name] == 2 or "train_" in name and "batch" not in name):
            weights = act(weights)
        if name in seen:
            noted.append(weights)
    return [*noted, weights]


def assert_alike(actual: list[Weights], expected: list[Weights]) -> None:
    assert len(actual) == len(expected)
    for number, pair in enumerate(zip(actual, expected, strict=True)):
        for first, second in zip(*pair, strict=True):
            np.testing.assert_allclose(first, second, atol=2e-6, err_msg=str(number))


def fit(model: Any, callback: Any, face: str, request: Any) -> None:
    options: dict[str, Any] = {} if face == "here" else {"workers": 2}
    if face in ("threads", "processes"):
        options["client"] = request.getfixturevalue(face)
    model.fit(X, Y, epochs=EPOCHS, batch_size=4, callbacks=callback, progress=False, **options)


@pytest.mark.parametrize("event", [*PAUSED, *BATCHES])
@pytest.mark.parametrize("act", ACTS)
def test_what_a_callback_sets_counts_from_the_next_step_on(act: str, event: str, tmp_path: Path, request: Any):
    check(act, event, "here", tmp_path, request, [*PAUSED, *BATCHES])


@pytest.mark.ci
@pytest.mark.parametrize("event", PAUSED)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("face", ["workers", "threads", "processes"])
def test_what_a_callback_sets_counts_on_clusters(face: str, act: str, event: str, tmp_path: Path, request: Any):
    check(act, event, face, tmp_path, request, PAUSED)


def check(act: str, event: str, face: str, path: Path, request: Any, seen: list[str]) -> None:
    model, (do, change) = made(), ACTS[act]
    acting = Acting(event, lambda model: do(model, path), seen)
    fit(model, acting, face, request)
    assert_alike([*acting.weights, model.get_weights()], by_hand(event, change, seen))


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "fit": (lambda model: model.fit(X, Y, progress=False), "a further fit has no effect while fit trains the model"),
    "compile": (lambda model: model.compile("adam", "mse"), "compile has no effect while fit trains the model"),
    "add": (lambda model: model.add(nn.Dense(1)), "add has no effect while fit trains the model"),
    "pop": (lambda model: model.pop(), "pop has no effect while fit trains the model"),
    "trainable": (
        lambda model: setattr(model, "trainable", False),
        "no effect while fit trains the model; do it before",
    ),
    "shape": (lambda model: setattr(model, "params", {"dense_bias": np.zeros(3)}), "(3,)"),
    "name": (lambda model: setattr(model, "params", {"dense_bia": np.zeros(3)}), "did you mean 'dense_bias'?"),
    "nan": (lambda model: model.set_weights([OTHER[0], np.full(2, np.nan)]), "has NaN or infinity"),
}


# Each act at the end of an epoch and of a batch, and one in all events.
@pytest.mark.parametrize(
    ("act", "event"),
    [*itertools.product(REFUSED, ("on_epoch_end", "on_train_batch_end")), *(("nan", event) for event in OTHERS)],
)
def test_what_cannot_count_is_refused(act: str, event: str, request: Any):
    model, (do, message) = made(), REFUSED[act]
    refused_with(lambda: fit(model, Acting(event, do, [event]), "here", request), message)
    model.fit(X, Y, progress=False)  # goes on


@pytest.mark.ci
@pytest.mark.parametrize("event", BATCHES)
@pytest.mark.parametrize("act", [*ACTS, *REFUSED])
@pytest.mark.parametrize("face", ["workers", "processes"])
def test_events_of_batches_on_clusters_refuse_all(face: str, act: str, event: str, tmp_path: Path, request: Any):
    do = (lambda model: ACTS[act][0](model, tmp_path)) if act in ACTS else REFUSED[act][0]
    with pytest.raises(UserError, match="while fit trains the model|of a model that fit trains are set in events"):
        fit(made(), Acting(event, do, [event]), face, request)


def trained(face: str, *given: Any, **fields: Any) -> nn.Sequential:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 2)).astype(np.float32)
    model = nn.Sequential([nn.Input(3), nn.Dense(8, "tanh"), nn.Dropout(0.3), nn.BatchNormalization(), nn.Dense(2)])
    model.compile(nn.Adam(0.01), "mse")
    options: dict[str, Any] = {"workers": 2} if face == "workers" else {}
    model.fit(x, y, epochs=3, batch_size=8, callbacks=list(given), progress=False, **options, **fields)
    return model


@pytest.mark.parametrize("face", ["here", pytest.param("workers", marks=pytest.mark.ci)])
def test_weights_that_are_set_to_what_they_are_change_no_bit_of_a_run_with_a_state(face: str, tmp_path: Path):
    def same(epoch: int, logs: Any) -> None:
        model = again.model
        model.set_weights(model.get_weights())
        model.save(tmp_path / "in")

    again = callbacks.LambdaCallback(on_epoch_begin=same, on_epoch_end=same)
    plain, changed = trained(face), trained(face, again, workspace=tmp_path / "run")
    for pair in zip(plain.get_weights(), changed.get_weights(), strict=True):
        np.testing.assert_array_equal(*pair)
    changed.save(tmp_path / "after")
    for name in ("params.safetensors", "optimizer.safetensors"):
        saved, after = (read_safetensors(tmp_path / folder / name) for folder in ("in", "after"))
        assert saved.keys() == after.keys()
        assert all(np.array_equal(saved[param], after[param]) for param in after)
    for model in (plain, changed, nn.load_model(tmp_path / "in")):
        model.train_on_batch(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))
    for pair in zip(plain.get_weights(), changed.get_weights(), strict=True):
        np.testing.assert_array_equal(*pair)


def test_steps_on_batches_in_a_callback_move_the_momentum_of_the_fit():
    def step(batch: int, logs: Any) -> None:
        stepping.model.train_on_batch(X, Y)

    stepping = callbacks.LambdaCallback(on_train_batch_end=step)
    twice, plain = made(nn.SGD(RATE, 0.9)), made(nn.SGD(RATE, 0.9))
    fit(twice, stepping, "here", None)
    plain.fit(X, Y, epochs=2 * EPOCHS, batch_size=4, progress=False)
    assert_alike([twice.get_weights()], [plain.get_weights()])
    assert twice.train_on_batch(X, Y) == pytest.approx(plain.train_on_batch(X, Y), rel=1e-4)


def test_a_model_that_shares_layers_shows_the_params_of_the_run_and_kept_ones_stay():
    model = made()
    part, seen = nn.Model(model.inputs, model.layers[0].output), []

    def look(epoch: int, logs: Any) -> None:
        seen.append((model.params, [*model.get_weights()], part.predict(X[:1])))
        with pytest.raises(ValueError, match="read-only"):
            model.params["dense_bias"][:] = 0

    fit(model, callbacks.LambdaCallback(on_epoch_end=look), "here", None)
    for params, weights, output in seen:
        np.testing.assert_array_equal(params["dense_bias"], weights[1])
        np.testing.assert_allclose(output[0], weights[0] @ RECORD + weights[1], rtol=1e-5)


def test_what_begins_the_next_epoch_comes_after_all_that_end_this_one(tmp_path: Path):
    kept: list[Weights] = []

    def spoil(epoch: int, logs: Any) -> None:
        if epoch:
            model.set_weights([array + 10 for array in model.get_weights()])

    model = made()
    events = callbacks.LambdaCallback(on_epoch_begin=spoil, on_epoch_end=lambda *_: kept.append(model.get_weights()))
    best = callbacks.EarlyStopping("val_loss", 9, restore_best_weights=True)
    saves = callbacks.ModelCheckpoint(tmp_path / "{epoch}")
    model.fit(X, Y, epochs=2, validation_data=(X, Y), callbacks=[events, best, saves], progress=False)
    assert_alike([model.get_weights()], kept[:1])
    assert_alike([nn.load_model(tmp_path / str(epoch)).get_weights() for epoch in (1, 2)], kept)


def test_where_params_are_not_set():
    model = made()
    setting = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.set_weights(OTHER))
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "averages of the params are kept (use_ema, ema_conf)": (nn.SGD(RATE, use_ema=True), setting, {}),
        "several worker groups train": (None, setting, {"cluster": nn.Cluster(groups=2)}),
        "are set in events of a callback": (None, lambda step, metrics: model.set_weights(OTHER), {}),
    }
    for message, (optimizer, callback, fields) in cases.items():
        model.compile(optimizer or "sgd", "mse")
        with pytest.raises(UserError) as error:
            model.fit(X, Y, epochs=2, batch_size=4, callbacks=callback, progress=False, **fields)
        assert message in str(error.value)
