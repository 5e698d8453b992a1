"""Estimators on numpy arrays in this process: what they predict, what fit and partial_fit go on from, bad input."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import dsinga
from dsinga import UserError, nn
from dsinga.engine.local_net import LocalNet
from dsinga.estimators import Classifier, Regressor, Transformer, load
from dsinga.job import ExtensionConf, ExtensionType
from tests.support.programs import python
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)


def halves(x: np.ndarray, y: np.ndarray) -> Any:
    return train_test_split(x, y, random_state=0)


def test_a_classifier_without_arguments_learns_digits() -> None:
    x, xt, y, yt = halves(*load_digits(return_X_y=True))
    classifier = Classifier(random_state=0).fit(x, y, validation_data=(xt, yt))
    assert classifier.score(xt, yt) > 0.95
    last = classifier.history_[-1]
    assert last["val_accuracy"] == pytest.approx(classifier.score(xt, yt))
    assert last["val_loss"] < classifier.history_[0]["val_loss"]
    assert [row["epoch"] for row in classifier.history_] == list(range(1, len(classifier.history_) + 1))


def test_a_regressor_without_arguments_learns_numbers_of_any_size() -> None:
    x, xt, y, yt = halves(*load_diabetes(return_X_y=True))
    assert Regressor(random_state=0).fit(x, y).score(xt, yt) > 0.2
    matrix = np.stack([y * 1e4 + 1e6, x[:, 0]], axis=1)
    regressor = Regressor(random_state=0).fit(x, matrix, validation_data=(x, matrix))
    assert regressor.predict(xt).shape == (len(xt), 2)
    assert regressor.score(x, matrix) > 0.6


def test_a_matrix_of_labels_is_predicted_column_by_column() -> None:
    x = RNG.normal(size=(600, 5))
    y = (x[:, :3] > 0).astype(int)
    classifier = Classifier(random_state=0, epochs=60).fit(x, y)
    assert (classifier.predict(x) == y).mean() > 0.95
    probabilities = classifier.predict_proba(x)
    np.testing.assert_array_equal(probabilities > 0.5, classifier.predict(x) == 1)


def test_pipelines_and_grid_search_take_estimators() -> None:
    x, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(MinMaxScaler(), Transformer(n_components=3, random_state=0), LogisticRegression())
    assert pipeline.fit(x, y).score(x, y) > 0.6
    assert list(pipeline[:-1].get_feature_names_out()) == ["transformer0", "transformer1", "transformer2"]
    search = GridSearchCV(Classifier(random_state=0), {"hidden": [(4,), (16, 8)], "activation": ["tanh"]}, cv=2)
    search.fit(x, y)
    assert search.best_score_ > 0.8


@pytest.mark.parametrize("method", ["autoencoder", "rbm"])
def test_a_transformer_learns_to_reproduce_records(method: str) -> None:
    x = load_digits().data
    transformer = Transformer(method=method, n_components=16, random_state=0)
    features = transformer.fit_transform(x)
    assert features.shape == (len(x), 16)
    name = "loss" if method == "autoencoder" else "reconstruction_error"
    assert transformer.history_[-1][name] < 0.6 * transformer.history_[0][name]


def model() -> nn.Model:
    net = nn.Sequential([nn.Input(shape=64), nn.Dense(16, activation="relu", name="hidden"), nn.Dense(10, "softmax")])
    net.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
    return net


def test_a_job_a_model_and_an_estimator_give_the_same_bits() -> None:
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    by_model = model()
    by_model.fit(x, y, epochs=2, batch_size=50, seed=3, progress=False)
    job = dsinga.loads(str(by_model.job(epochs=2, batch_size=50, seed=3)))
    by_job = dsinga.train(job, data=(x, y), progress=False)
    by_estimator = Classifier(model(), epochs=2, batchsize=50, random_state=None)
    by_estimator.set_params(net=job).fit(x, y)
    assert_same(by_job.params, by_model.params)
    assert_same(by_estimator.params_, by_model.params)


def test_a_model_without_a_shape_takes_that_of_the_records() -> None:
    x, y = load_digits(return_X_y=True)
    net = nn.Sequential([nn.Dense(16, activation="relu", name="hidden"), nn.Dense(10, "softmax")])
    net.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
    fields = {"epochs": 2, "batchsize": 50, "random_state": 0}
    classifier, expected = Classifier(net, **fields).fit(x, y), Classifier(model(), **fields).fit(x, y)
    assert_same(classifier.params_, expected.params_)
    assert classifier.set_params(net=net).fit(x[:, :30], y).params_["hidden_weight"].shape == (16, 30)


HINGE = """
epochs: 20
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 500 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w" init { type: kUniformSqrtFanIn } } param { name: "b" init { type: kConstant } } }
  LOSS
}
"""


def test_a_loss_without_weights_trains_unless_there_are_weights() -> None:
    x, y = load_iris(return_X_y=True)  # which has a record twice
    loss = 'layer { name: "loss" type: kHingeLoss srclayers: "ip" srclayers: "data" }'
    classifier = Classifier(dsinga.loads(HINGE.replace("LOSS", loss))).fit(x, y)
    assert classifier.score(x, y) > 0.6
    refused(lambda: classifier.fit(x, y, sample_weight=np.arange(len(x))), "'loss'", "weights of records")
    refused(lambda: Classifier(dsinga.loads(HINGE.replace("LOSS", ""))).fit(x, y), "has no loss layer")


def test_features_of_a_layer_of_ones_own_net() -> None:
    x, y = load_digits(return_X_y=True)
    job = dsinga.models.mlp([16], inputs=64, batchsize=50, train_steps=40)
    transformer = Transformer(job, layer="act1").fit(x, y)
    net = LocalNet(transformer.job_, x[:1].astype(np.float32))
    expected = net.predict(transformer.params_, x.astype(np.float32), "act1")
    np.testing.assert_array_equal(transformer.transform(x), expected)
    refused(lambda: Transformer(job).fit(x, y), "name the layer of net")


def test_fit_goes_on_with_warm_start_and_partial_fit_always() -> None:
    x, y = load_iris(return_X_y=True)
    once = Classifier(random_state=0, epochs=30, hidden=(8,)).fit(x, y)
    twice = Classifier(random_state=0, epochs=15, hidden=(8,), warm_start=True).fit(x, y).fit(x, y)
    assert_same(twice.params_, once.params_)
    assert len(twice.history_) == 30
    again = Classifier(random_state=0, epochs=15, hidden=(8,)).fit(x, y).fit(x, y)
    assert len(again.history_) == 15
    steps = Classifier(random_state=0, hidden=(8,))
    for _ in range(30):
        steps.partial_fit(x, y, classes=[0, 1, 2])
    assert_same(steps.params_, once.params_)
    refused(lambda: steps.partial_fit(x, y + 1), "class 3, which is", "the first call", error=ValueError)


def test_a_warm_up_lasts_over_calls_of_partial_fit() -> None:
    x, y = load_iris(return_X_y=True)
    job = dsinga.models.mlp([8], inputs=4, classes=3, brightest=1.0, batchsize=50, epochs=4)
    job = job.replace(updater=job.updater.replace(learning_rate=job.updater.learning_rate.replace(warmup_steps=10)))
    whole, parts = Classifier(job, random_state=0).fit(x, y), Classifier(job, random_state=0)
    for _ in range(4):
        parts.partial_fit(x, y, classes=[0, 1, 2])
    assert_same(parts.params_, whole.params_)


def test_a_net_can_be_a_model_or_the_path_of_a_job(tmp_path: Any) -> None:
    x, y = load_digits(return_X_y=True)
    from_model = Classifier(model(), epochs=3).fit(x, y)
    (tmp_path / "net.conf").write_text(str(model().job(epochs=3)))
    from_path = Classifier(str(tmp_path / "net.conf")).fit(x, y)
    assert_same(from_model.params_, from_path.params_)
    assert Transformer(model(), layer="hidden", epochs=1).fit(x, y).transform(x).shape == (len(x), 16)


@pytest.mark.parametrize(
    "estimator",
    [
        Classifier(random_state=0, epochs=2),
        Regressor(random_state=0, epochs=2, hidden=(5, 4)),
        Transformer(random_state=0, epochs=2, n_components=3),
        Transformer(method="rbm", random_state=0, epochs=2),
        Classifier(dsinga.models.mlp([4], inputs=4, classes=3, train_steps=5)),
    ],
    ids=str,
)
def test_a_saved_estimator_gives_the_same_results(estimator: Any, tmp_path: Any) -> None:
    x, y = load_iris(return_X_y=True)
    labels = np.array(["a", "b", "c"])[y] if isinstance(estimator, Classifier) else y
    estimator.fit(x, labels)
    estimator.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    method = "transform" if isinstance(estimator, Transformer) else "predict"
    np.testing.assert_array_equal(getattr(loaded, method)(x), getattr(estimator, method)(x))
    if estimator.net is None:
        assert loaded.get_params() == estimator.get_params()
    loaded.partial_fit(x, labels)
    refused(lambda: estimator.save(tmp_path / "saved"), "saved is not empty")
    refused(lambda: load(tmp_path), "is no saved estimator: it", "lacks estimator")


def test_mistakes_are_named_with_their_remedies() -> None:
    with pytest.raises(UserError, match=r"X has numbers as large as 1e\+200 in column 1, whose squares are infinite"):
        Classifier(epochs=1).fit([[0, 1e200], [1, -1e200]], [0, 1])
    job = dsinga.models.mlp([4], inputs=64, classes=3, train_steps=5)
    refused(lambda: Classifier(job).fit(*load_digits(return_X_y=True)), "is none of its 3", "classes")


@pytest.mark.ci
def test_no_dask_is_imported() -> None:
    code = (
        "import sys, numpy; from dsinga.estimators import Classifier; "
        "x = numpy.eye(9); Classifier().fit(x, x[:, 0]).predict(x); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'dask', 'distributed'}))"
    )
    answer = python("-c", code)
    assert answer.stdout.strip() == "[]"


def test_the_extensions_of_the_job_hold_here_as_on_a_cluster() -> None:
    stops = ExtensionConf(type=ExtensionType.kEarlyStopping, monitor="train/loss", patience=1, min_delta=5.0)
    job = dsinga.models.mlp([4], inputs=64, classes=10, train_steps=5).replace(extension=[stops])
    fitted = Classifier(job, epochs=30).fit(*load_digits(return_X_y=True))
    assert len(fitted.history_) == 2
