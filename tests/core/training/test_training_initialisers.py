"""Initial values: the stated distributions, the same for the same seed and name, independent of other params."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dsinga.base.registry import register, unregister
from dsinga.job import InitMethod, ParamGenConf, Settings, check, loads, required, setting
from dsinga.job.limits import Unit
from dsinga.training import Initialiser, initial_values, initialise
from dsinga.training.initialisers import param_rng
from tests.support.refusals import refused
from tests.support.texts import texts
from tests.support.training_cases import build, dense, layer

SHAPE = (200, 300)
CASES = [  # method, settings, scipy's distribution
    ("kGaussian", {"mean": 2, "std": 0.5}, stats.norm(2, 0.5)),
    ("kGaussian", {"mean": 2, "std": 0.5, "value": 3}, stats.norm(6, 1.5)),
    ("kUniform", {"low": -0.05, "high": 0.05}, stats.uniform(-0.05, 0.1)),
    ("kUniform", {"value": 4}, stats.uniform(-4, 8)),
    ("kGaussianSqrtFanIn", {"std": 2}, stats.norm(0, 2 / 300**0.5)),
    ("kUniformSqrtFanIn", {}, stats.uniform(-0.1, 0.2)),  # √(3 / 300) = 0.1
    ("kUniformSqrtFanIn", {"value": 0.57735027}, stats.uniform(-(300**-0.5), 2 * 300**-0.5)),  # SINGA's Param page
    ("kUniformSqrtFanInOut", {}, stats.uniform(-(500**-0.5), 2 * 500**-0.5)),
    ("kUniformFanInOut", {}, stats.uniform(-((6 / 500) ** 0.5), 2 * (6 / 500) ** 0.5)),
    ("kUniformFanInOut", {"value": 2, "low": 0}, stats.uniform(0, 2 * (6 / 500) ** 0.5)),
]


@pytest.mark.parametrize(("method", "settings", "distribution"), CASES)
def test_values_have_the_stated_distribution(method, settings, distribution):
    values = initialise(SHAPE, ParamGenConf(type=method, **settings), param_rng(1, "w"))
    assert values.shape == SHAPE
    assert values.dtype == np.float32
    assert stats.kstest(values.ravel(), distribution.cdf).pvalue > 1e-3
    assert abs(values.mean() - distribution.mean()) < 5 * distribution.std() / values.size**0.5
    assert stats.pearsonr(values.ravel()[:-1], values.ravel()[1:]).pvalue > 1e-3


def test_every_method_is_tested():
    tested = {method for method, _, _ in CASES} | {"kConstant", "kUserInit"}
    of_addons = {"kMemberScales", "kUniformRow"}  # tests/addons/tables/layers/test_member_layers.py
    assert tested == {method.name for method in InitMethod} - of_addons


@pytest.mark.parametrize("name", ["kConstant", "kConst"])
def test_a_constant(name):
    values = initialise((3,), ParamGenConf(type=name, value=0.25), param_rng(0, "b"))
    assert values.tolist() == [0.25, 0.25, 0.25]


def test_convolution_weights_count_all_inputs_of_a_filter_as_columns():
    conf = ParamGenConf(type="kUniformSqrtFanIn")
    flat = initialise((8, 75), conf, param_rng(1, "w"))
    np.testing.assert_array_equal(initialise((8, 3, 5, 5), conf, param_rng(1, "w")).reshape(8, 75), flat)


def net(*names):
    init = {"init": {"type": "kUniform"}}
    layers = [dense(f"ip{k}", f"ip{k - 1}" if k else "data", 5, {"name": name, **init}) for k, name in enumerate(names)]
    return build(*layers)


@given(st.integers(-(2**40), 2**70), texts(max_size=8))
def test_values_depend_on_seed_and_name_only(seed, name):
    numbers, same = param_rng(seed, name).random(4), param_rng(seed, name).random(4)
    np.testing.assert_array_equal(numbers, same)
    assert (numbers != param_rng(seed + 1, name).random(4)).any()
    assert (numbers != param_rng(seed, name + "'").random(4)).any()


def test_another_layer_does_not_change_a_params_values():
    single, several = initial_values(net("w").params, 5), initial_values(net("v", "w").params, 5)
    np.testing.assert_array_equal(single["w"], several["w"])
    assert (several["v"] != several["w"]).any()


def test_values_stay_those_of_earlier_releases():
    """A resumed or compared run must not depend on the version; these are the numbers of the first version."""
    uniform = initialise((2, 2), ParamGenConf(type="kUniform", low=0, high=1), param_rng(7, "w1"))
    gaussian = initialise((2, 2), ParamGenConf(type="kGaussian"), param_rng(7, "w1"))
    assert uniform.ravel().tolist() == pytest.approx([0.95592552, 0.08856338, 0.10445118, 0.31450033], abs=1e-7)
    assert gaussian.ravel().tolist() == pytest.approx([-0.76849628, -0.05973595, 0.14774215, 0.93677175], abs=1e-7)


def test_a_param_without_init_gets_the_constant_of_its_layer():
    params = build(layer("bn", "kBM", "data")).params
    values = initial_values(params, 0)
    assert {name: set(value.tolist()) for name, value in values.items()} == {
        "bn_scale": {1.0}, "bn_bias": {0.0}, "bn_mean": {0.0}, "bn_variance": {1.0},
    }  # fmt: skip
    assert all(value.dtype == np.float32 for value in values.values())


def test_a_users_initialiser_is_found_by_name():
    @register("initialiser", "Eye")
    def eye(shape, conf, rng):
        return np.eye(*shape) * conf.value

    values = initialise((2, 2), ParamGenConf(type="kUserInit", user_type="Eye", value=3), param_rng(0, "w"))
    assert values.tolist() == [[3, 0], [0, 3]]
    assert values.dtype == np.float32


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("type: kGaussianSqrtFanIn", r"job.conf:2: kGaussianSqrtFanIn fills params with rows and columns, .*\(4,\)"),
        ("type: kUniform low: 2\nhigh: 1", "job.conf:3: high 1.0 is less than low 2.0"),
        ("type: kUserInit", "job.conf:2: type kUserInit needs user_type"),
        ('type: kUserInit\nuser_type: "Eyes"', "job.conf:3: no initialiser is registered as 'Eyes'"),
    ],
)
def test_mistakes_in_a_job_are_reported_with_file_and_line(init, message):
    text = f'neuralnet {{ layer {{ name: "a" param {{ init {{\n{init} }} }} }} }}'
    conf = loads(text, "job.conf").neuralnet.layer[0].param[0].init
    refused(lambda: initialise((4,), conf, param_rng(0, "b")), message)


def sparse_job(settings):
    """Return a job with a param whose initialiser, of the user's own, has settings on line 2."""

    @register("initialiser", "Sparse")
    class Sparse(Initialiser):
        class Conf(Settings):
            share: Unit = required("the share of the numbers that are not 0")
            size: float = setting(2.0, "these numbers")

        def __call__(self, shape, rng):
            return np.where(rng.random(shape) < self.settings.share, self.settings.size * self.conf.value, 0)

    layer = f'layer {{ name: "a" type: kReLU param {{ init {{ user_type: "Sparse"\n{settings} }} }} }}'
    return loads(f"train_steps: 1 net {{ {layer} }}", "job.conf")


def test_a_users_initialiser_has_typed_settings():
    check(sparse_job("share: 0"), [])
    job = sparse_job("share: 0.25 value: 3")
    values = initialise((200, 50), job.net.layer[0].param[0].init, param_rng(0, "w"))
    assert np.unique(values).tolist() == [0, 6]
    assert 0.2 < (values == 6).mean() < 0.3


def test_a_setting_that_each_initialiser_has_with_another_type_is_refused():
    @register("initialiser", "Whole")
    class Whole(Initialiser):
        class Conf(Settings):
            std: int = setting(1, "the standard deviation")

    refused(lambda: ParamGenConf(type="kUserInit", user_type="Whole"), "'Whole'", "with another type")
    unregister("initialiser", "Whole")


def test_wrong_settings_of_a_users_initialiser_are_refused():
    refused(lambda: check(sparse_job("share: 1.5")), "share must be in", "not 1")
    refused(lambda: check(sparse_job("size: 2")), "'Sparse'", "needs share")
    init = sparse_job("size: 2").net.layer[0].param[0].init
    refused(lambda: initialise((2,), init, param_rng(0, "w")), "'share'", "needs the field")
