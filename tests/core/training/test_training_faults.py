"""Faults in a user's layer, updater, schedule, initialiser or algorithm are found early and named, with a remedy."""

import math
from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import lookup, register
from dsinga.job import AlgConf, LRGenConf, ParamGenConf, Phase, UpdaterConf
from dsinga.layers import Context, Layer, Output, ParamSpec, Records, Rows
from dsinga.ops import get_ops
from dsinga.training import Updater, bp, check_algorithm_metrics, create_updater, initial_values, initialise, schedule
from dsinga.training.algorithms import algorithm
from tests.support.refusals import check_refusal, refusal, refused
from tests.support.training_cases import build, dense, layer, records_of

LOSS = layer("loss", "kSoftmaxLoss", "top", "data")


class Sound(Layer):
    """A right layer, its source times a param; subclasses have faults."""

    source_count = 1

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("scale", self.shape[1:], initial=1.0),)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0] * params[0])

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return (grad * params[0] if needs[0] else None,), ((grad * sources[0]).sum(0),)


def train_once(own: type) -> None:
    """Build a net with one layer of the class ``own`` and run one iteration of it in float32."""
    register("layer", "Own")(own)
    net = build(dense("low", "data"), layer("own", "Own", "low"), dense("top", "own"), LOSS)
    data, labels = records_of(net)["data"]
    records = {"data": Records(data.astype(np.float32), labels)}
    ctx = Context(get_ops("numpy"), Phase.kTrain, Rows(0, 4, 4))
    bp(net, initial_values(net.params, 0), records, ctx, lambda name, gradient: None)


def sound_with(**methods):
    return type("Own", (Sound,), methods)


def after_init(**attributes):
    def init(self, conf, source_shapes, info=None):
        Sound.__init__(self, conf, source_shapes, info)
        vars(self).update(attributes)

    return sound_with(__init__=init)


def gradient(function):
    return sound_with(compute_gradient=lambda self, p, s, o, grad, needs, ctx: function(grad))


def feature(function):
    return sound_with(compute_feature=lambda self, params, sources, ctx: function(sources[0]))


def no_super(self, conf, source_shapes, info=None):
    self.shape = source_shapes[0]


def test_a_right_layer_passes():
    train_once(Sound)


class Averaging(Sound):
    """Keeps the mean of its source as lasting state; subclasses have faults."""

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.params += (ParamSpec("mean", self.shape[1:], trainable=False),)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0] * params[0], state=self.state(sources[0]))

    def compute_gradient(self, *given):
        for_sources, for_params = super().compute_gradient(*given)
        return for_sources, (*for_params, None)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda self, x: {"men": x.mean(0)}, "has no param 'men' with trainable=False .*; did you mean 'mean'"),
        (lambda self, x: {"scale": x.mean(0)}, "has no param 'scale' with trainable=False"),
        (lambda self, x: {"mean": x.mean()}, r"the new state of param 'mean' has the shape \(\).*\(3,\)"),
    ],
)
def test_a_fault_in_lasting_state_names_the_layer(state, message):
    train_once(type("Own", (Averaging,), {"state": lambda self, x: {"mean": x.mean(0)}}))
    refused(lambda: train_once(type("Own", (Averaging,), {"state": state})), rf"layer 'own': .*{message}")


@pytest.mark.parametrize("method", ["compute_feature", "compute_gradient"])
def test_a_layer_cannot_change_what_it_was_given(method):
    def change(self, params, sources, *_):
        sources[0][:] = 0

    with pytest.raises(ValueError, match="read-only") as caught:
        train_once(sound_with(**{method: change}))
    assert caught.value.__notes__ == [
        f"in {method} of layer 'own'",
        "a layer must not change the arrays that it is given; work on a copy",
    ]


def test_an_exception_of_a_constructor_names_the_layer():
    with pytest.raises(TypeError) as caught:
        train_once(sound_with(__init__=lambda self, conf: None))
    assert caught.value.__notes__ == ["in Own(conf, source_shapes, info) of layer 'own'"]


def test_a_missing_compute_gradient_names_the_layer():
    with pytest.raises(NotImplementedError, match="does not define compute_gradient") as caught:
        train_once(sound_with(compute_gradient=Layer.compute_gradient))
    assert caught.value.__notes__ == ["in compute_gradient of layer 'own'"]


class Plain(Updater):
    def change(self, lr, w, g, slots, t, s):
        w -= lr * g


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (lambda conf: None, "updater 'Own' must be a subclass of dsinga.training.Updater"),
        (type("Own", (Plain,), {"slots": "history"}), r"slots of updater 'Own' must be a tuple, as in \('history',\)"),
        (type("Own", (Plain,), {"__init__": lambda self, conf: None}), r"must begin with super\(\).__init__\(conf\)"),
    ],
)
def test_a_fault_in_an_updater_is_found_before_training(entry, message):
    register("updater", "Own")(entry)
    refused(lambda: create_updater(UpdaterConf(user_type="Own")), message)


@pytest.mark.parametrize(
    "change", [lambda self, lr, w, g: None, lambda self, lr, w, g, slots, t, s: slots[0], lambda self, *_: 1 / 0]
)
def test_an_exception_of_an_updater_is_raised_before_training_and_names_it(change):
    register("updater", "Own")(type("Own", (Plain,), {"change": change}))
    with pytest.raises((TypeError, IndexError, ZeroDivisionError)) as caught:
        create_updater(UpdaterConf(user_type="Own"))
    assert caught.value.__notes__ == ["in updater 'Own', tried before training"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (lambda conf: 0.1, "schedule 'Own' must return a function of the step, not 0.1"),
        (lambda conf: lambda step: None, "schedule 'Own' gives None at step 0"),
        (lambda conf: lambda step: math.nan, "schedule 'Own' gives nan at step 0"),
        (lambda conf: lambda step: np.ones(2), "schedule 'Own' gives array"),
        (lambda conf: lambda step: -1.0, "schedule 'Own' gives -1.0 at step 0; a rate is at least 0 and finite"),
    ],
)
def test_a_fault_in_a_schedule_is_found_before_training(entry, message):
    register("schedule", "Own")(entry)
    refused(lambda: schedule(LRGenConf(user_type="Own")), message)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"of param 'w' must return an array of shape \(2, 3\), not None"),
        ("zeros", "not 'zeros'"),
        (np.zeros(3), r"returned the shape \(3,\), not \(2, 3\)"),
        (np.full((2, 3), np.inf), "not finite"),
    ],
)
def test_a_fault_in_an_initialiser_names_the_param(given, message):
    register("initialiser", "Own")(lambda shape, conf, rng: given)
    refused(lambda: initialise((2, 3), ParamGenConf(user_type="Own"), np.random.default_rng(0), "w"), message)


def test_an_exception_of_an_initialiser_names_the_param():
    register("initialiser", "Own")(lambda shape: np.zeros(shape))
    net = build(dense("top", "data", 3, {"name": "w", "init": {"user_type": "Own"}}), LOSS)
    with pytest.raises(TypeError) as caught:
        initial_values(net.params, 0)
    assert caught.value.__notes__ == ["in the initialiser of param 'w'"]


@pytest.mark.parametrize("metrics", [None, {"loss": 0.5}, [("loss", (1.0, 2))]])
def test_an_algorithm_must_return_metrics(metrics):
    refused(lambda: check_algorithm_metrics(metrics), r"must return metrics, as in \{\"loss\": \(sum, count\)\}")
    assert check_algorithm_metrics({"loss": (1.0, 4)}) == {"loss": (1.0, 4)}


MISTAKES = [
    refusal(lambda: train_once(int), "must be registered with", "Layer"),
    refusal(lambda: train_once(type("Own", (Layer,), {})), "compute_feature", "does not define"),
    refusal(lambda: train_once(sound_with(__init__=no_super)), "source_shapes", "info"),
    refusal(lambda: train_once(after_init(shape=(4, None))), "must set self", "shape"),
    refusal(lambda: train_once(after_init(params=ParamSpec("scale", (3,)))), "params must be a", "tuple"),
    refusal(lambda: train_once(after_init(params=(ParamSpec("scale", 3),))), "'scale'", "be a tuple"),
    refusal(lambda: train_once(feature(lambda x: x)), "4 x", "an array of"),
    refusal(lambda: train_once(feature(lambda x: None)), "must return an Output", "not None"),
    refusal(lambda: train_once(feature(lambda x: Output([1, 2]))), "must return an array", "not a list"),
    refusal(lambda: train_once(feature(lambda x: Output(x[:, :2]))), "feature of 4 x", "rows of 3"),
    refusal(lambda: train_once(feature(lambda x: Output(x.sum(0)))), "shape promises rows of", "3, but self"),
    refusal(lambda: train_once(feature(lambda x: Output(x.astype(float)))), "made float64 of float32"),
    refusal(lambda: train_once(feature(lambda x: Output(x, metrics={"sum": 1.5}))), "'sum'", "count), not 1"),
    refusal(lambda: train_once(gradient(lambda grad: grad)), "compute_gradient must", "4 x 3"),
    refusal(lambda: train_once(gradient(lambda grad: None)), "compute_gradient must", "not None"),
    refusal(lambda: train_once(gradient(lambda grad: ((grad,), ()))), "1 for", "params, not 0"),
    refusal(lambda: train_once(gradient(lambda grad: ((), (grad[0],)))), "1 for", "sources, not 0"),
    refusal(lambda: train_once(gradient(lambda grad: (grad, (grad[0],)))), "1 for", "not an array"),
    refusal(lambda: train_once(gradient(lambda grad: ((grad,), (None,)))), "'scale'", "for its param"),
    refusal(lambda: train_once(gradient(lambda grad: ((grad,), (grad,)))), "'scale'", "shape (4, 3"),
    refusal(lambda: train_once(gradient(lambda grad: ((grad[0],), (grad[0],)))), "gradient for 'low' has the"),
    refusal(lambda: train_once(gradient(lambda grad: ((grad,), (grad[0].astype(float),)))), "float64", "it must be"),
    refusal(lambda: train_once(gradient(lambda grad: ((grad,), ([0.0, 0.0, 0.0],)))), "'scale'", "not a list"),
    refusal(lambda: (register("algorithm", "Own")("bp"), algorithm(AlgConf(user_alg="Own"))), "'Own'", "be a function"),
    refusal(lambda: lookup("updater", "Xyzzy"), 'register("updater", "Xyzzy") and import', "the module"),
    refusal(lambda: algorithm(AlgConf(alg="kUserAlg", user_alg="kPB")), "'kPB'", "is registered as"),
    refusal(lambda: register("layer"), "MyName", 'in @register("layer", "'),
    refusal(lambda: train_once(feature(lambda x: Output(x, metrics={"a": (x[0], 1)}))), "'own'", "'a'", "(3,)", "one"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
