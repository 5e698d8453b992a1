"""What a net has learnt goes along the roads of estimators: params of net=, the optimizer, settings, and seeds."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier, Regressor, Transformer, load
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, (64, 6)).astype(np.float32)
Y = (X[:, 0] > 3).astype(int)


def trained() -> nn.Sequential:
    """Return a model with params, a frozen layer, running statistics and an adapter, whose training changes nothing."""
    layers = [nn.Dense(8, name="frozen"), nn.BatchNormalization(name="bn"), nn.Dense(2, name="fc")]
    model = nn.Sequential([nn.Input(6), *layers])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(X, Y, epochs=5, progress=False)
    model.get_layer("frozen").trainable = False
    model.add_lora(2, layers=["fc"])
    model.fit(X, Y, progress=False)
    model.compile(nn.SGD(0.0), "sparse_categorical_crossentropy")
    return model


def same(params: Any, others: Any) -> bool:
    """Return whether all params are equal, and running statistics nearly."""
    return params.keys() == others.keys() and all(
        np.allclose(params[name], others[name], rtol=0.5 if name.startswith("bn") else 0) for name in params
    )


NETS: dict[str, Callable[[nn.Sequential, Path], Any]] = {
    "model": lambda model, _: model,
    "job": lambda model, _: model.job(epochs=1),
    "clone": lambda model, _: clone(Classifier(net=model)).net,
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "saved": lambda model, folder: (model.save(folder), nn.load_model(folder))[1],
    "checkpoint_path": lambda model, folder: model.job(epochs=1).with_params({}).replace(
        checkpoint_path=[str((model.save_weights(folder / "w.safetensors"), folder / "w.safetensors")[1])]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("how", ["fit", "partial_fit", "workers"])
def test_training_begins_with_the_params_of_the_net(kind: str, how: str, tmp_path: Path) -> None:
    model = trained()
    estimator = Classifier(net=NETS[kind](model, tmp_path), epochs=None if how == "partial_fit" else 1, random_state=5)
    if how == "partial_fit":
        estimator.partial_fit(X, Y, classes=[0, 1])
    else:
        estimator.set_params(workers=2 if how == "workers" else None).fit(X, Y)
    assert same(estimator.params_, model.params)


def test_a_grid_search_begins_each_fit_with_the_params_of_the_net() -> None:
    search = GridSearchCV(Classifier(net=(model := trained())), {"batchsize": [8, 16]}, cv=2).fit(X, Y)
    assert same(search.best_estimator_.params_, model.params)


def test_running_statistics_of_the_net_keep_their_weight_in_further_calls() -> None:
    model = nn.Sequential([nn.Input(6), nn.BatchNormalization(name="bn"), nn.Dense(2)])
    model.compile(nn.SGD(0.01), "sparse_categorical_crossentropy")
    model.fit(X, Y, epochs=5, progress=False)
    estimator = Classifier(net=model, batchsize=64).partial_fit(X, Y, classes=[0, 1])
    before = estimator.params_["bn_mean"]
    after = estimator.partial_fit(10 * X, Y).params_["bn_mean"]
    np.testing.assert_allclose(after, before + 0.1 * (10 * X.mean(axis=0) - before), rtol=1e-4)  # momentum 0.9


# -- the optimizer ----------------------------------------------------------------------------------------------------


def partly() -> Classifier:
    return Classifier(hidden=4, random_state=0).partial_fit(X, Y, classes=[0, 1])


KEPT: dict[str, Callable[[Classifier, Path], Classifier]] = {
    "pickle": lambda estimator, _: pickle.loads(pickle.dumps(estimator)),
    "save": lambda estimator, folder: (estimator.save(folder), load(folder))[1],
}


@pytest.mark.parametrize("kind", KEPT)
def test_the_optimizer_goes_on_in_a_copy(kind: str, tmp_path: Path) -> None:
    whole, copied = partly(), KEPT[kind](partly(), tmp_path)
    for each in (whole, copied):
        each.partial_fit(X, Y)
    assert all((whole.params_[name] == copied.params_[name]).all() for name in whole.params_)


def test_the_optimizer_goes_on_with_workers() -> None:
    here, there = (Classifier(hidden=4, random_state=0, batchsize=64, workers=workers) for workers in (None, 2))
    for _ in range(3):
        for each in (here, there):
            each.partial_fit(X, Y, classes=[0, 1])
    for name, array in here.params_.items():
        np.testing.assert_allclose(there.params_[name], array, rtol=1e-4, atol=1e-5)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "name", "value"),
    [
        (Classifier, "hidden", 3), (Classifier, "activation", "tanh"), (Classifier, "learning_rate", 0.1),
        (Classifier, "weight_decay", 0.1), (Regressor, "loss", "absolute_error"), (Regressor, "hidden", (3,)),
        (Transformer, "n_components", 3), (Transformer, "method", "rbm"),
    ],
)  # fmt: skip
def test_settings_of_the_default_net_are_refused_beside_a_net(estimator: Any, name: str, value: Any) -> None:
    refused(lambda: estimator(net=trained(), **{name: value}).fit(X, Y), f"{name} is a setting of the default net")


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
@pytest.mark.parametrize("how", ["fit", "partial_fit"])
def test_a_changed_rate_is_used_from_the_next_call_on(name: str, how: str) -> None:
    estimators = [Classifier(hidden=4, random_state=0, warm_start=True, epochs=2).fit(X, Y) for _ in range(2)]
    estimators[1].set_params(**{name: 0.0})
    for each in estimators:
        each.partial_fit(X, Y) if how == "partial_fit" else each.fit(X, Y)
    assert not np.array_equal(*(each.params_["fc1_weight"] for each in estimators))


@pytest.mark.parametrize(("name", "value"), [("hidden", 9), ("activation", "tanh"), ("net", trained())])
@pytest.mark.parametrize("how", ["fit", "partial_fit"])
def test_another_net_is_refused_where_training_goes_on(name: str, value: Any, how: str) -> None:
    estimator = Classifier(hidden=4, random_state=0, warm_start=True, epochs=1).fit(X, Y)
    estimator.set_params(**({name: value, "hidden": None} if name == "net" else {name: value}))
    with pytest.raises(UserError, match=r"settings of the net have changed .*warm_start=False"):
        estimator.partial_fit(X, Y) if how == "partial_fit" else estimator.fit(X, Y)
    estimator.set_params(warm_start=False).fit(X, Y)
