"""The net of an estimator that scales refuses records by every face; each loader names the other one's call."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier, Regressor, Transformer, load
from tests.support.refusals import refused

pd = pytest.importorskip("pandas")

X = np.random.default_rng(0).normal(100, 3, (40, 3)).astype(np.float32)
Y = X.sum(axis=1)
FRAME = pd.DataFrame(X, columns=[*"abc"]).assign(town=["Ulm", "Bonn"] * 20)
FITTED: dict[str, tuple[Any, Any, Any]] = {
    "classifier": (Classifier(), X, Y > 300), "regressor": (Regressor(), X, Y),
    "regressor of a frame": (Regressor(), FRAME, Y), "transformer": (Transformer(), X, None),
}  # fmt: skip


@cache
def fitted(what: str) -> tuple[Any, Any, np.ndarray]:
    """Return a fitted estimator, its records and its targets."""
    estimator, x, y = FITTED[what]
    return estimator.set_params(epochs=1, random_state=0).fit(x, y), x, Y if y is None else np.asarray(y)


def model(estimator: Any) -> nn.Model:
    """Return the model of the estimator's net."""
    of_job = nn.from_job(estimator.job_)
    of_job.params = estimator.params_
    return of_job


def saved_job(estimator: Any, folder: Path) -> Any:
    """Return the job that is saved with an estimator."""
    estimator.save(folder / "saved")
    return dsinga.load(folder / "saved" / "job.conf")


FACES = {
    "nn predict": lambda e, x, y, folder: model(e).predict(x),
    "nn evaluate": lambda e, x, y, folder: model(e).evaluate(x, y),
    "nn fit": lambda e, x, y, folder: model(e).fit(x, y, progress=False),
    "train": lambda e, x, y, folder: dsinga.train(e.job_, data=(x, y), progress=False),
    "evaluate": lambda e, x, y, folder: dsinga.evaluate(e.job_, e.params_, data=(x, y)),
    "predict": lambda e, x, y, folder: dsinga.predict(e.job_, e.params_, e._output, data=x),
    "job file": lambda e, x, y, folder: dsinga.predict(saved_job(e, folder), e.params_, e._output, data=x),
    "loaded": lambda e, x, y, folder: (saved_job(e, folder), model(load(folder / "saved")).predict(x)),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("what", FITTED)
def test_the_net_of_an_estimator_that_scales_refuses_records(what, face, tmp_path):
    estimator, x, y = fitted(what)
    with pytest.raises(UserError, match=rf"by a {type(estimator).__name__}, which scales .* call predict of the est"):
        FACES[face](estimator, x, y, tmp_path)


def test_a_net_without_scaling_predicts_as_its_estimator():
    codes = (FRAME.a > 100).astype(int).to_numpy()
    estimator = Classifier(epochs=1, random_state=0).fit(FRAME, codes)
    np.testing.assert_array_equal(model(estimator).predict(FRAME), estimator._outputs(estimator.as_trained(FRAME)))


def test_each_loader_names_the_other_ones_call(tmp_path):
    fitted("regressor")[0].save(tmp_path / "estimator")
    refused(lambda: nn.load_model(tmp_path / "estimator"), "saved by an estimator", r"call dsinga.estimators.load\('")
    net = nn.Sequential([nn.Input((3,)), nn.Dense(1)])
    net.compile("adam", "mse")
    net.fit(X, Y, epochs=1, progress=False)
    net.save(tmp_path / "model")
    refused(lambda: load(tmp_path / "model"), "lacks estimator.json", "if a model")


def test_the_net_for_small_frames_is_that_of_small_arrays():
    small = fitted("regressor of a frame")[0]
    sizes = {
        layer.name: layer.innerproduct_conf.num_output for layer in small.job_.neuralnet.layer if layer.name == "fc1"
    }
    assert (sizes, small.job_.updater.weight_decay) == ({"fc1": 64}, 0.01)
    large = Regressor(epochs=1).fit(pd.concat([FRAME] * 51), np.tile(Y, 51))
    assert large.job_.updater.weight_decay == 1e-4
