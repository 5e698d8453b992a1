"""What a net has learnt goes along every road: params, running statistics, the optimizer, seeds, and frozen layers."""

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.engine.local_net import LocalNet
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, (64, 6)).astype(np.float32)
Y = (X[:, 0] > 3).astype(int)
QUIET: dict[str, Any] = {"progress": False, "shuffle": False, "batch_size": 16}


def normalised(rate: float = 0.05, momentum: float | None = None) -> nn.Sequential:
    layers = [nn.Input(6), nn.BatchNormalization(momentum, name="bn"), nn.Dense(2, name="fc")]
    model = nn.Sequential(layers)
    model.compile(nn.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy")
    return model


def are_equal(params: Any, others: Any) -> bool:
    return params.keys() == others.keys() and all(np.array_equal(params[name], others[name]) for name in params)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    normalised().fit(X, Y, epochs=5, workspace=folder, **QUIET)
    return folder / "checkpoint" / "step20"


# -- running statistics -----------------------------------------------------------------------------------------------


def test_two_fits_are_one() -> None:
    once, twice = normalised(), normalised()
    once.fit(X, Y, epochs=4, **QUIET)
    for _ in range(2):
        twice.fit(X, Y, epochs=2, **QUIET)
    assert are_equal(once.params, twice.params)


def roads() -> dict[str, Callable[[nn.Sequential, Path, Path], nn.Model]]:
    """Return the roads by name that lead from a trained model to one with the same running statistics."""

    def compiled(model: nn.Sequential, *_: Path) -> Any:
        model.compile(nn.SGD(0.0), "sparse_categorical_crossentropy")
        return model

    def loaded(model: nn.Sequential, folder: Path, _: Path) -> Any:
        model.save(folder / "model")
        return nn.load_model(folder / "model")

    def weights(model: nn.Sequential, folder: Path, _: Path) -> Any:
        model.save_weights(folder / "weights.safetensors")
        other = normalised()
        other.load_weights(folder / "weights.safetensors")
        return other

    def params(model: nn.Sequential, *_: Path) -> Any:
        other = normalised()
        other.params = model.params
        return other

    def of_layers(model: nn.Sequential, *_: Path) -> Any:
        other = normalised()
        for layer, trained in zip(other.layers, model.layers, strict=True):
            layer.set_weights(trained.get_weights())
        return other

    def from_job(model: nn.Sequential, *_: Path) -> Any:
        return nn.from_job(model.job(X, Y, epochs=1))

    def on_batches(model: nn.Sequential, *_: Path) -> Any:
        for _ in range(20):
            (other := params(model)).train_on_batch(X[:16], Y[:16])
        return other

    def started(_model: nn.Sequential, _folder: Path, checkpoint: Path) -> Any:
        return nn.from_job(normalised().job(X, Y, epochs=1, checkpoint_path=[str(checkpoint)]))

    return {
        "fit": lambda model, *_: model, "compile": compiled, "save": loaded, "weights": weights, "params": params,
        "from_job": from_job, "layers": of_layers, "train_on_batch": on_batches, "checkpoint_path": started,
        "pickle": lambda model, *_: pickle.loads(pickle.dumps(model)), "copy": lambda model, *_: copy.deepcopy(model),
    }  # fmt: skip


@pytest.mark.parametrize("road", roads())
@pytest.mark.parametrize("how", ["fit", "train_on_batch"])
def test_statistics_keep_their_weight(road: str, how: str, checkpoint: Path, tmp_path: Path) -> None:
    (trained := normalised()).fit(X, Y, epochs=5, **QUIET)
    model = roads()[road](trained, tmp_path, checkpoint)
    before = {"bn_mean": trained.params["bn_mean"], **(model.params if road != "checkpoint_path" else {})}["bn_mean"]
    far = X[:16] + 1000
    if how == "fit":
        model.fit(far, Y[:16], **QUIET)
    else:
        model.train_on_batch(far, Y[:16])
    moved = model.params["bn_mean"] - before
    assert (moved > 50).all()
    assert (moved < 150).all()


def test_statistics_keep_their_weight_in_a_loop_of_ones_own() -> None:
    (model := normalised()).fit(X, Y, epochs=5, **QUIET)
    net = LocalNet(model.job(train_steps=1), X, Y)
    moved = net.backward(net.initial_params(), X + 1000, Y).gradients["bn_mean"] - model.params["bn_mean"]
    assert (moved < 150).all()


@pytest.mark.parametrize("start", ["params", "job", "checkpoint_path"])
def test_statistics_keep_their_weight_in_a_run_that_is_resumed(start: str, checkpoint: Path, tmp_path: Path) -> None:
    model, begin = normalised(momentum=0.99), dict[str, Any]()
    model.params = checkpoint
    job = normalised(momentum=0.99).job(X + 1000, Y, batch_size=16, train_steps=6, checkpoint_freq=3)
    if start == "job":
        job = model.job(X + 1000, Y, batch_size=16, train_steps=6, checkpoint_freq=3)
    elif start == "params":
        begin = {"params": model.params}
    else:
        job = job.replace(checkpoint_path=[str(checkpoint)])
    whole = dsinga.train(job, workspace=tmp_path, progress=False, **begin)
    resumed = dsinga.train(job.with_params({}), resume=tmp_path / "checkpoint" / "step3", progress=False)
    assert are_equal(whole.params, resumed.params)
    assert (whole.params["bn_mean"] < 100).all()


def test_statistics_that_were_never_learnt_have_no_weight() -> None:
    once, other = normalised(), normalised()
    other.params = normalised().params
    for model in (once, other):
        model.fit(X, Y, epochs=4, **QUIET)
    assert are_equal(once.params, other.params)


# -- params -----------------------------------------------------------------------------------------------------------


def test_a_job_begins_with_the_params_of_its_model() -> None:
    (model := normalised()).fit(X, Y, **QUIET)
    model.compile(nn.SGD(0.0), "sparse_categorical_crossentropy")
    job = model.job(X, Y, epochs=1)
    fc = model.params["fc_weight"].copy()
    assert (dsinga.train(job, progress=False).params["fc_weight"] == fc).all()
    assert (pickle.loads(pickle.dumps(job.replace(seed=3))).params["fc_weight"] == fc).all()
    assert (nn.from_job(job).params["fc_weight"] == fc).all()
    assert (LocalNet(job, X, Y).initial_params()["fc_weight"] == fc).all()
    model.set_weights([array * 0 for array in model.get_weights()])
    assert (job.params["fc_weight"] == fc).all()
    given = {"fc_weight": fc + 1}
    assert (dsinga.train(job, params=given, progress=False).params["fc_weight"] == fc + 1).all()
    found = dsinga.search(job, {"updater.learning_rate.base_lr": [0.0, 1e-12]}, progress=False)
    loss = dsinga.train(job, progress=False).history[-1]["loss"]
    assert [row["score"] for row in found] == pytest.approx([loss, loss])


def test_a_local_net_begins_with_the_checkpoint_of_its_job(checkpoint: Path) -> None:
    job = normalised().job(X, Y, epochs=1, checkpoint_path=[str(checkpoint)])
    (model := normalised()).params = checkpoint
    assert are_equal(LocalNet(job, X, Y).initial_params(), dict(model.params))
    refused(lambda: model.fit(X, Y, checkpoint_path=[str(checkpoint)], **QUIET), "checkpoint_path out", "params")


def test_arrays_of_the_caller_stay_theirs() -> None:
    model, x, y = normalised(), X.copy(), Y.astype(np.float32)
    params = {name: array.copy() for name, array in model.params.items()}
    model.params = params
    params["fc_weight"][:] = 99
    weights = model.get_weights()
    model.set_weights(weights)
    weights[-2][:] = 99
    assert model.params["fc_weight"].max() < 9
    model.train_on_batch(x, Y)
    net = LocalNet(model.job(train_steps=1), x, Y)
    net.backward(net.initial_params(), x, Y)
    net.forward(net.initial_params(), x, Y)
    regression = nn.Sequential([nn.Input(6), nn.Dense(1)])
    regression.compile("sgd", "mse")
    regression.train_on_batch(x, y)
    x[:], y[:] = 0, 0
    assert net.predict(net.initial_params(), x, "fc").shape == (64, 2)


def test_params_that_the_net_lacks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    model = normalised()
    model.params = {**normalised().params, "typo": np.zeros(3)}
    with caplog.at_level(logging.WARNING):
        model.predict(X)
    assert "the net has no params typo" in caplog.text
    assert "typo" not in model.params


def blocks() -> Iterator[tuple[tuple[int, ...], Callable[[Any], Any]]]:
    """Yield the shape of records, and a function that applies a new layer which has layers."""
    attention, inner = nn.MultiHeadAttention(2, 3, name="attention"), nn.Input(6)
    yield (4, 6), lambda x: attention(x, x)
    separable, nested = nn.SeparableConv2D(4, 3, name="separable"), nn.Model(inner, nn.Dense(5, name="inner")(inner))
    yield (3, 8, 8), lambda x: nn.Flatten()(separable(x))
    yield (6,), nested
    recurrent = nn.Bidirectional(nn.LSTM(3, name="lstm"))
    yield (4, 6), recurrent


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("first", ["predict", "fit"])
def test_params_that_are_set_reach_a_layer_that_is_shared(number: int, first: str) -> None:
    def model(units: int, block: tuple[tuple[int, ...], Callable[[Any], Any]]) -> nn.Model:
        x = nn.Input(block[0])
        made = nn.Model(x, nn.Dense(units, name=f"head{units}")(block[1](x)))
        made.compile("sgd", "mse")
        return made

    block = [*blocks()][number]
    one, two, alone = model(2, block), model(3, block), model(3, [*blocks()][number])
    x = RNG.normal(size=(8, *block[0])).astype(np.float32)
    y = one.predict(x)
    if first == "fit":
        one.fit(x, y * 0, progress=False)
    new = {name: array + 0.1 for name, array in alone.params.items()}
    two.params = alone.params = new
    np.testing.assert_array_equal(two.predict(x), alone.predict(x))
    assert are_equal(dict(two.params), new)
    assert all((one.params[name] == new[name]).all() for name in one.params if name in new)


# -- seeds ------------------------------------------------------------------------------------------------------------


def looked_at(model: nn.Sequential) -> None:
    model.predict(X)
    model.get_weights()


@pytest.mark.parametrize("act", [lambda _: None, looked_at, lambda model: model.add_lora(2, layers=["fc"])])
def test_a_seed_reaches_params_that_nobody_has_set(act: Callable[[Any], Any]) -> None:
    drawn = []
    for seed in (1, 2, 2):
        act(model := normalised(rate=0.0))
        model.fit(X, Y, seed=seed, **QUIET)
        drawn.append(np.concatenate([array.ravel() for name, array in model.params.items() if "fc" in name]))
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[1], drawn[2])


def test_the_seed_of_a_program_draws_what_a_model_shows() -> None:
    shown = []
    for seed in (1, 2):
        nn.set_random_seed(seed)
        shown.append(normalised().params["fc_weight"])
    nn.set_random_seed(0)
    assert not np.array_equal(*shown)


def test_a_model_that_was_saved_goes_on_with_the_next_seed(tmp_path: Path) -> None:
    (model := normalised()).fit(X, Y, progress=False)
    model.save(tmp_path)
    loaded = nn.load_model(tmp_path)
    for each in (model, loaded):
        each.fit(X, Y, progress=False)
    assert are_equal(model.params, loaded.params)


# -- what is set, and what is resumed ---------------------------------------------------------------------------------


def test_attributes_without_effect_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential([nn.Input(6), nn.Dropout(0.5, name="drop"), nn.Dense(2)])
    with pytest.raises(UserError, match=r"rate of drop .*nn.Dropout\(..., rate=0.1\)"):
        model.get_layer("drop").rate = 0.1
    with pytest.raises(AttributeError, match="unitss"):
        model.layers[-1].unitss = 3
    model.compile(nn.SGD(0.1, use_ema=True), "sparse_categorical_crossentropy")
    refused(lambda: model.train_on_batch(X, Y), "use_ema", "fit with train_steps=1")
    model.trainable = False
    with caplog.at_level(logging.WARNING):
        model.fit(X, Y, progress=False)
    assert "all params of the net are frozen" in caplog.text


BN, CLASSES = [nn.BatchNormalization(name="bn")], "sparse_categorical_crossentropy"


@pytest.mark.parametrize(
    ("layers", "loss", "options", "message"),
    [
        ([], CLASSES, {}, r"no params bn_scale, bn_bias, .*checkpoint_path"),
        (BN, nn.SoftmaxLoss(scale=2), {}, ""),
        (BN, "mse", {}, r"other losses \(kSoftmaxLoss\) than .*\(kEuclideanLoss\)"),
        (BN, CLASSES, {"class_weight": {0: 2.0}}, r"other weights of records \(none\) than the job"),
    ],
)
def test_a_run_of_another_objective_is_not_resumed(layers, loss, options, message, checkpoint):
    model = nn.Sequential([nn.Input(6), *layers, nn.Dense(2, name="fc")])
    model.compile(nn.SGD(0.05, momentum=0.9), loss)
    y = np.eye(2, dtype=np.float32)[Y] if loss == "mse" else Y
    if not message:
        model.fit(X, y, epochs=6, resume=checkpoint, **options, **QUIET)
        return
    refused(lambda: model.fit(X, y, epochs=6, resume=checkpoint, **options, **QUIET), message)
