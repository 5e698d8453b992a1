"""Nets whose passes are replayed train to the bits of nets that are called, with all settings of training."""

import logging
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from dsinga import UserError, nn
from dsinga import extensions as callbacks
from dsinga.base.registry import register
from dsinga.engine.local_net import LocalNet
from dsinga.job import UpdaterConf
from dsinga.ops.compiled import joined_calls
from dsinga.ops.host_pass import HostPass
from dsinga.ops.onednn.onednn_ops import Float32Ops
from dsinga.training.updater import Updater
from tests.support.refusals import refused
from tests.support.small_job import assert_same
from tests.support.user_layers import Identity

RNG = np.random.default_rng(0)
X, Y = RNG.normal(0, 2, (36, 6)).astype(np.float32), RNG.integers(0, 3, 36)
BAD = X.copy()
BAD[20, 2] = np.nan
SETTINGS: dict[str, list[Any]] = {
    "optimizer": [
        nn.SGD, nn.Adam, nn.AdamW, nn.RMSprop, nn.Adagrad, nn.Adadelta, nn.Adamax, nn.Lamb, nn.Lion, nn.Muon,
    ],
    "clipping": [{}, {"clip_value": 0.02}, {"clip_norm": 0.05}, {"clip_global_norm": 0.1}],
    "averages": [{}, {"use_ema": True, "ema_momentum": 0.9, "ema_every": 3}],
    "rate": [0.05, nn.ExponentialDecay(0.05, decay_steps=4, decay_rate=0.5)],
    "data": [X, BAD],
    "dropout": [0.0, 0.3],
    "micro_batches": [1, 2],
    "blocks": [0, 3],  # of 3, 3 and 2 rows, which two recordings compute
    "rows": [32, 36],  # the last batch of eight is a short one
}  # fmt: skip


MASKS = [0b0101, 0b0110, 0b0111, 0b1001, 0b1101, 0b1010, 0b1011]  # of bits whose parity chooses one of two
PAIRS = [  # one of each, in which each pair of two choices occurs
    (k, low, *((((k & 3) << 2 | low) & mask).bit_count() % 2 for mask in MASKS)) for k in range(10) for low in range(4)
]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of the passes that were replayed."""
    monkeypatch.setattr(joined_calls, "JOINED_AFTER", 2)  # replays
    steps: list[int] = []
    launch = HostPass.launch

    def noted(self: HostPass, step: int) -> None:
        steps.append(step)
        launch(self, step)

    monkeypatch.setattr(HostPass, "launch", noted)
    return steps


def model_of(*inner: Any, optimizer: Any = "adam") -> nn.Sequential:
    model = nn.Sequential([nn.Input((6,)), nn.Dense(5, activation="relu"), *inner, nn.Dense(3)])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit(model: nn.Sequential, x: np.ndarray, y: np.ndarray, **arguments: Any) -> tuple[dict[str, Any], Any]:
    history = model.fit(x, y, batch_size=8, epochs=3, progress=False, **arguments)
    return dict(model.params), history.history


def both(monkeypatch: pytest.MonkeyPatch, make: Any, *arguments: Any, **named: Any) -> tuple[Any, Any]:
    """Return what a fit gives that may replay passes, and one that calls them."""
    replayed = fit(make(), *arguments, **named)
    with monkeypatch.context() as patch:
        patch.setattr(Float32Ops, "captures_passes", False)
        called = fit(make(), *arguments, **named)
    return replayed, called


@pytest.mark.parametrize("choice", PAIRS, ids=str)
def test_settings_of_training(choice: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, launches: list[int]):
    chosen = {name: values[k] for (name, values), k in zip(SETTINGS.items(), choice, strict=True)}
    rows, inner = chosen["rows"], [nn.Dropout(chosen["dropout"])] if chosen["dropout"] else []

    def make() -> nn.Sequential:
        optimizer = chosen["optimizer"](chosen["rate"], **chosen["clipping"], **chosen["averages"])
        return model_of(*inner, optimizer=optimizer)

    further = {"skip_bad_batches": chosen["data"] is BAD, "micro_batches": chosen["micro_batches"]}
    if chosen["blocks"]:
        further["blocks"] = chosen["blocks"]
    replayed, called = both(monkeypatch, make, chosen["data"][:rows], Y[:rows], **further)
    assert launches
    assert_same(replayed[0], called[0])
    np.testing.assert_equal(replayed[1], called[1])


class Acting(callbacks.Callback):
    """Does something with the model, once, at a step of the second epoch."""

    def __init__(self, act: Any):
        self._act, self._steps = act, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        if self._steps == 7:
            self._act(self.model)


def interrupt(_: Any) -> None:
    raise KeyboardInterrupt


def halve(model: Any) -> None:
    model.set_weights([array / 2 for array in model.get_weights()])


ACTS = {
    "interrupt": interrupt, "set_weights": halve, "predict": lambda model: model.predict(X),
    "train_on_batch": lambda model: model.train_on_batch(X[:8], Y[:8]), "evaluate": lambda model: model.evaluate(X, Y),
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_what_happens_between_steps(act: str, monkeypatch: pytest.MonkeyPatch, launches: list[int]):
    def make() -> nn.Sequential:
        model = model_of(nn.BatchNormalization(), nn.Dropout(0.2))
        try:
            fit(model, X, Y, callbacks=[Acting(ACTS[act])])
        except KeyboardInterrupt:
            assert act == "interrupt"
        return model

    replayed, called = both(monkeypatch, make, X, Y)
    assert launches
    assert_same(replayed[0], called[0])
    assert replayed[1] == called[1]


def test_an_interrupt_within_a_replay(monkeypatch: pytest.MonkeyPatch):
    """The step is not counted, and what the replay had computed by then changes no later number."""

    def trained() -> dict[str, Any]:
        model, start = model_of(nn.Dropout(0.3)), 0
        while start < 12:
            try:
                model.train_on_batch(X[start : start + 8], Y[start : start + 8])
                start += 1
            except KeyboardInterrupt:
                interrupted.append(start)
        return dict(model.params)

    def launch_or_stop(self: HostPass, step: int) -> None:
        if step == 7 and not interrupted:
            calls = self._recorder.calls
            for call in calls[: len(calls) // 2]:
                call()
            raise KeyboardInterrupt
        launch(self, step)

    launch, interrupted = HostPass.launch, list[int]()
    monkeypatch.setattr(HostPass, "launch", launch_or_stop)
    replayed = trained()
    assert interrupted == [7]
    monkeypatch.setattr(Float32Ops, "captures_passes", False)
    assert_same(replayed, trained())


def test_the_rows_of_an_embedding_differ_from_batch_to_batch(monkeypatch: pytest.MonkeyPatch, launches: list[int]):
    codes = RNG.integers(1, 30, (36, 5), dtype=np.int32)

    def make() -> nn.Sequential:
        layers = [nn.Embedding(30, 4), nn.GRU(3), nn.Dense(3)]
        model = nn.Sequential([nn.Input((5,), dtype="int64"), *layers])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        for start in range(8):
            model.train_on_batch(codes[start : start + 6], Y[start : start + 6])
        return model

    def own_loop() -> dict[str, Any]:
        net = LocalNet(make().job(train_steps=1), codes[:6], Y[:6])
        params, updater = net.initial_params(), net.updater()
        for start in range(9):
            updater.step(params, net.backward(params, codes[start : start + 6], Y[start : start + 6]).gradients)
        return params

    replayed, called = both(monkeypatch, make, codes, Y)
    assert len(launches) > 8
    assert_same(replayed[0], called[0])
    assert replayed[1] == called[1]
    params = own_loop()
    monkeypatch.setattr(Float32Ops, "captures_passes", False)
    assert_same(params, own_loop())


def test_a_label_that_is_no_class_is_refused_as_by_a_call(monkeypatch: pytest.MonkeyPatch, launches: list[int]):
    def trained() -> tuple[str, dict[str, Any]]:
        model, wrong = model_of(), Y[:8].copy()
        wrong[5] = 7
        for start in range(8):
            model.train_on_batch(X[start : start + 8], Y[start : start + 8])
        with pytest.raises(UserError) as error:
            model.train_on_batch(X[:8], wrong)
        model.train_on_batch(X[:8], Y[:8])
        return str(error.value), dict(model.params)

    replayed = trained()
    assert launches
    monkeypatch.setattr(Float32Ops, "captures_passes", False)
    called = trained()
    assert replayed[0] == called[0]
    assert "label 7" in replayed[0]
    assert_same(replayed[1], called[1])


CHANGES: dict[str, Any] = {
    "weights set": lambda model: model.set_weights([array + 1 for array in model.get_weights()]),
    "a layer's weights set": lambda model: model.layers[0].set_weights([a + 1 for a in model.layers[0].get_weights()]),
    "a param assigned": lambda model: model.weights[2].assign(np.ones((3, 5))),
    "a param changed in place": lambda model: model.params[model.weights[0].name].fill(0.5),
    "other params": lambda model: setattr(model, "params", model_of().params),
    "a fit": lambda model: model.fit(X, Y, progress=False),
    "a batch trained": lambda model: [model.train_on_batch(X[:8], Y[:8]) for _ in range(8)],
    "another loss": lambda model: model.compile("sgd", nn.SoftmaxLoss(topk=2, scale=2.0)),
    "a layer added": lambda model: model.add(nn.Activation("tanh")),
    "layers removed": lambda model: (model.pop(), model.add(nn.Dense(3, name="new"))),
    "a frozen layer": lambda model: setattr(model.layers[0], "trainable", False),
    "records refused": lambda model: pytest.raises(UserError, model.predict, BAD[20:21]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_predictions_are_replayed_until_the_model_changes(change: str, launches: list[int]):
    model = model_of()
    for changed in (False, True):
        if changed:
            CHANGES[change](model)
        expected = {}
        for rows in (1, 8):
            copy = pickle.loads(pickle.dumps(model))  # which keeps nothing
            expected[rows] = [copy.predict(X[:rows]), *copy.evaluate(X[:rows], Y[:rows]), copy(X[:rows].astype(int))]
        launches.clear()
        for rows in (1, 8) * 6:
            results = [model.predict(X[:rows]), *model.evaluate(X[:rows], Y[:rows]), model(X[:rows].astype(int))]
            assert all(map(np.array_equal, results, expected[rows]))
        assert len(launches) >= 6


@register("layer", "RememberingIdentity")
class RememberingIdentity(Identity):
    """A user's layer that keeps an array between calls, and lets its shape follow that of the batch."""

    seen: Any = None

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Any:
        last, RememberingIdentity.seen = RememberingIdentity.seen, np.array(sources[0])
        moved = 0 if last is None or last.shape != sources[0].shape else last
        return super().compute_feature(params, [sources[0] + np.float32(0.01) * moved], ctx)


def test_a_users_layer_is_called(monkeypatch, launches, caplog):
    def make() -> nn.Sequential:
        RememberingIdentity.seen = None
        return model_of(nn.Layer("RememberingIdentity", name="own"))

    with caplog.at_level(logging.DEBUG, "dsinga"):
        replayed, called = both(monkeypatch, make, X, Y)
    assert not launches
    said = [record for record in caplog.records if "are not replayed" in record.getMessage()]
    assert [(record.levelno, record.getMessage()) for record in said] == [
        (logging.DEBUG, "training passes are not replayed: layer 'own' runs code of the user's")
    ]
    assert_same(replayed[0], called[0])
    assert replayed[1] == called[1]


def test_a_thread_replays_what_an_ended_thread_has_recorded():
    """The system gives the number of an ended thread to the next one, which finds its passes."""
    model = nn.Sequential([nn.Input((6,)), nn.Dense(5, activation="relu"), nn.Dense(3)])
    model.compile("adam", "sparse_categorical_crossentropy")
    expected = model.predict(X)
    found: list[Any] = []

    def work() -> None:
        found.extend(model.predict(X) for _ in range(6))
        model.evaluate(X, Y)

    for _ in range(4):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
    assert len(found) == 24
    assert all(np.array_equal(each, expected) for each in found)


def test_records_in_another_order_of_memory_are_called():
    model = nn.Sequential([nn.Input((40,)), nn.LayerNormalization()])
    model.compile("sgd", "mse")
    x = RNG.normal(size=(9, 40)).astype(np.float32)
    first = model.predict(np.asfortranarray(x))
    for _ in range(6):
        model.predict(x)
    assert np.array_equal(model.predict(np.asfortranarray(x)), first)


def test_one_array_for_several_inputs_is_refused_after_replays_too():
    a, b = nn.Input((6,), name="a"), nn.Input((6,), name="b")
    model = nn.Model([a, b], nn.Dense(2, name="d")(nn.Concatenate()([a, b])))
    model.compile("sgd", "mse")
    records = {"a": X, "b": X[::-1].copy()}
    net = LocalNet(model.job(train_steps=1), records, {"a": X[:, :2].copy()})
    params = net.initial_params()
    for _ in range(6):
        net.forward(params, records)
    refused(lambda: net.forward(params, X), "give records as a dictionary")


def test_an_updater_of_the_users_gets_numbers():
    @register("updater", "number-checked")
    class NumberChecked(Updater):
        """Refuses a rate that is no number."""

        def change(self, lr: float, w: Any, g: Any, slots: Any, t: Any, s: Any) -> None:
            if not isinstance(lr, float):
                raise ValueError("the rate must be a number")
            w -= lr * g

    model = nn.Sequential([nn.Input((6,)), nn.Dense(3)])
    conf = UpdaterConf(user_type="number-checked", learning_rate=nn.SGD(0.1).learning_rate)
    model.compile(conf, "sparse_categorical_crossentropy")
    assert model.fit(X, Y, batch_size=12, epochs=2, progress=False).history["loss"][-1] < 10
