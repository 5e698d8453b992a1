"""Settings of params by their names; algorithms by name; labels that follow their rows."""

from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import AlgConf, AlgType, LayerConf, UpdaterConf, check, loads
from dsinga.layers import Records
from dsinga.training import algorithm, check_patterns, create_updater, describe_settings, forward
from dsinga.training.metrics import Metrics
from tests.support.refusals import refused
from tests.support.training_cases import build, context, layer, records_of, values_of

PARAMS = ("conv1_weight", "conv1_bias", "ip_weight", "ip_bias")


def conf_of(*settings: dict[str, Any], **fields: Any) -> UpdaterConf:
    rate = {"type": "kFixed", "base_lr": 0.1}
    return UpdaterConf(**{"type": "kSGD", "learning_rate": rate, **fields, "param_settings": list(settings)})


def create_for(conf: UpdaterConf) -> None:
    """Make the updater for the params of this file."""
    check_patterns(conf, PARAMS)
    create_updater(conf)


BIASES = {"match": "*_bias", "base_lr": 0.2, "weight_decay": 0, "momentum": 0}


LAST = {"match": "ip_*", "clip_low": -0.5, "clip_high": 0.5, "learning_rate": {"type": "kStep", "base_lr": 1,
        "step_conf": {"change_freq": 1, "gamma": 0.5}}}  # fmt: skip


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("conv1_weight", {}),
        ("conv1_bias", {"learning_rate": {"type": "kFixed", "base_lr": 0.2}, "weight_decay": 0, "momentum": 0}),
        ("ip_weight", {name: value for name, value in LAST.items() if name != "match"}),
        ("ip_bias", {"learning_rate": {"type": "kFixed", "base_lr": 0.2}, "weight_decay": 0, "momentum": 0}),
    ],
)
def test_the_first_setting_that_matches_holds(param: str, fields: dict[str, Any]) -> None:
    general = {"momentum": 0.9, "weight_decay": 0.01}
    updater = create_updater(conf_of(BIASES, LAST, **general)).of(param)
    alone = create_updater(conf_of(**{**general, **fields}))
    values = []
    for one in (updater, alone):
        value, state = np.ones(3, np.float32), one.create_state(3)
        for step in range(3):
            one.update(step, value, np.array([-2, 0.25, 3], np.float32), state)
        values.append(value)
    assert values[0].tobytes() == values[1].tobytes()


def test_a_factor_of_the_rate_holds_for_all_params() -> None:
    updater = create_updater(conf_of(BIASES))
    updater.set_rate_factors({5: 0.5})
    assert [updater.of(name).rate_at(5) for name in ("ip_bias", "ip_weight")] == [0.1, 0.05]


def test_elements_that_are_nan_are_set_to_zero_before_clipping() -> None:
    updater = create_updater(conf_of(nan_to_zero=True, clip_low=-1, clip_high=1))
    value, gradient = np.zeros(4, np.float32), np.array([np.nan, 5, -0.5, -np.inf], np.float32)
    updater.update(0, value, gradient, {})
    np.testing.assert_allclose(value, [0, -0.1, 0.05, 0.1], rtol=1e-6)
    assert np.isnan(gradient[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"param_settings": [{"match": "*_bais"}]}, "match: '[*]_bais' matches the name of no param; did you mean"),
        (
            {"type": "kMuon", "muon_conf": {"adamw_match": ["ip*", "embed*"]}},
            "adamw_match: 'embed[*]' matches the name of no param; the first are conv1_bias, conv1_w",
        ),
        ({"param_settings": [{"match": "x"}]}, "'x' matches the name of no param; the first are conv1_bias, conv1_w"),
        ({"param_settings": [{**LAST, "base_lr": 1}]}, "gives base_lr and learning_rate: put base_lr into"),
        ({"nan_to_zero": True, "clip_norm": 1}, "nan_to_zero goes with clip_low and clip_high, not with clip_norm"),
        ({"type": "kAdam", "momentum_conf": {"saturation_step": 9}}, "kAdam has no momentum; leave momentum_conf out"),
        ({"type": "kLamb", "momentum": 0.9}, "kLamb has no momentum; leave momentum out"),
        ({"momentum": 0.9, "momentum_conf": {"saturation_step": 9}}, "gives momentum and momentum_conf; leave one"),
    ],
)
def test_settings_that_cannot_hold_are_refused(fields: dict[str, Any], message: str) -> None:
    conf = conf_of().replace(**fields)
    refused(lambda: create_for(conf), message)


def test_mistakes_are_named_with_their_remedies() -> None:
    rate = "learning_rate { type: kFixed start_step: 30 }"
    job = loads(f'name: "x" train_steps: 20 updater {{ type: kSGD {rate} }} neuralnet {{ }}')
    refused(lambda: check(job), "start_step: 30 is after the 20 train_steps")
    dummy = layer("dummy", "kDummy", dummy_conf={"input": True, "shape": [ROWS, 3]})
    with pytest.raises(UserError, match="'both' has no labels"):
        run(dummy, layer("both", "kConcate", "data", "dummy", **JOIN), hits("a", "both", "both"))


def test_what_a_person_is_told() -> None:
    assert describe_settings(conf_of(BIASES, LAST), PARAMS) == [
        "*_bias: base_lr: 0.2 momentum: 0.0 weight_decay: 0.0; holds for conv1_bias ip_bias",
        "ip_*: learning_rate { type: kStep base_lr: 1.0 step_conf { gamma: 0.5 change_freq: 1 } } clip_low: -0.5 "
        "clip_high: 0.5; holds for ip_weight",
    ]


@pytest.mark.parametrize("alg", [alg for alg in AlgType if alg is not AlgType.kUserAlg])
def test_every_algorithm_that_a_job_can_name_is_registered(alg):
    assert callable(algorithm(AlgConf(alg=alg)))


def test_a_users_algorithm_may_be_a_function_or_a_class_made_from_its_configuration():
    @register("algorithm", "Nothing")
    def nothing(net, values, records, ctx, push):
        return {}

    @register("algorithm", "Configured")
    class Configured:
        def __init__(self, conf):
            self.conf = conf

        def __call__(self, net, values, records, ctx, push):
            return {"steps": (self.conf.cd_conf.cd_k, 1)}

    assert algorithm(AlgConf(alg="kUserAlg", user_alg="Nothing")) is nothing
    train_one_batch = algorithm(AlgConf(alg="kUserAlg", user_alg="Configured", cd_conf={"cd_k": 4}))
    assert train_one_batch(None, {}, {}, None, None) == {"steps": (4, 1)}


ROWS = 5


JOIN = {"concate_conf": {"concate_dim": 0}}


def hits(name: str, *sources: str) -> LayerConf:
    return layer(name, "kAccuracy", *sources, argsort_conf={"topk": 1})


def run(*layers: LayerConf) -> Metrics:
    """Run the net of ``layers`` on 5 rows, whose largest column is their class; return its metrics."""
    net = build(*layers, shape=(3,), rows=ROWS)
    labels = records_of(net)["data"].labels
    return forward(net, values_of(net), {"data": Records(np.eye(3)[labels], labels)}, context(net))[1]


def test_each_slice_of_the_batch_has_the_labels_of_its_rows():
    slices = {"slice_conf": {"slice_dim": 0, "num_slices": 2}}
    metrics = run(
        layer("slice", "kSlice", "data", **slices),
        layer("first", "kReLU", "slice"),
        layer("second", "kReLU", "slice"),
        hits("a", "first", "first"),
        hits("b", "second", "second"),
        hits("all", "data", "slice"),
    )
    everywhere = (ROWS, ROWS)
    assert metrics == {"accuracy": everywhere, "a/accuracy": (3, 3), "b/accuracy": (2, 2), "all/accuracy": everywhere}


def test_each_end_of_a_split_has_all_labels():
    metrics = run(
        layer("split", "kSplit", "data", split_conf={"num_splits": 2}),
        layer("first", "kReLU", "split"),
        layer("second", "kReLU", "split"),
        hits("a", "first", "second"),
        hits("b", "second", "split"),
    )
    assert metrics == dict.fromkeys(("accuracy", "a/accuracy", "b/accuracy"), (ROWS, ROWS))


def test_joined_rows_have_joined_labels():
    metrics = run(
        layer("relu", "kReLU", "data"), layer("both", "kConcate", "data", "relu", **JOIN), hits("a", "both", "both")
    )
    assert metrics == {"accuracy": (2 * ROWS, 2 * ROWS)}


def test_joined_columns_have_the_labels_of_the_first_source_with_labels():
    dummy = layer("dummy", "kDummy", dummy_conf={"input": True, "shape": [ROWS, 3]})
    both = layer("both", "kConcate", "dummy", "data", concate_conf={"concate_dim": 1})
    metrics = run(dummy, both, hits("a", "data", "both"))
    assert metrics == {"accuracy": (ROWS, ROWS)}
