"""Small params that an updater changes as one array: the same bits as each alone, and state that can be set."""

import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga.base.registry import register
from dsinga.job import ParamConf, UpdaterConf, UpdaterType
from dsinga.layers import ParamSpec
from dsinga.net import Param
from dsinga.nn import LocalNet
from dsinga.ops.ufunc_programs import trace, trace_series
from dsinga.ops.update import norm_factor, sum_of_squares
from dsinga.training import Updater, create_updater
from dsinga.training.joined_params import LARGEST
from dsinga.training.local_updater import LocalUpdater, norm_of
from dsinga.training.updater import Formulas
from tests.support.refusals import refused

JOB = """
updater {{ {updater} learning_rate {{ type: kFixed base_lr: 0.01 }} {settings} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ batchsize: 4 }} }}
  layer {{ name: "fc" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 7 }}
          param {{ name: "w1" init {{ type: kUniform }} }} param {{ name: "b1" lr_scale: 2 }} }}
  layer {{ name: "ip" type: kInnerProduct srclayers: "fc" innerproduct_conf {{ num_output: 3 }}
          param {{ name: "w2" init {{ type: kUniform }} }} param {{ name: "b2" }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }}
}}
"""
X, Y = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32), np.array([0, 1, 2, 0])
UPDATERS = {
    "Adam": ("type: kAdam", "adam_conf { bias_correction: true } weight_decay: 0.1"),
    "momentum": ("type: kSGD momentum: 0.9", 'param_settings { match: "w2" base_lr: 0.1 }'),
    "clipped": ("type: kAdaGrad", "clip_low: -0.01 clip_high: 0.01"),
}


def net_of(kind: str) -> LocalNet:
    updater, settings = UPDATERS[kind]
    return LocalNet(dsinga.loads(JOB.format(updater=updater, settings=settings)), X, Y)


def train(net: LocalNet, updater: LocalUpdater, params: dict[str, np.ndarray], steps: int) -> None:
    for _ in range(steps):
        updater.step(params, net.backward(params, X, Y).gradients)


RATE = {"type": "kStep", "base_lr": 0.1, "step_conf": {"gamma": 0.5, "change_freq": 2}}
SETTINGS: dict[str, dict[str, Any]] = {
    "decays": {"weight_decay": 0.02, "decoupled_weight_decay": True, "ema_conf": {"decay": 0.9, "every": 2}},
    "clips": {"clip_low": -0.5, "clip_high": 0.7, "nan_to_zero": True, "l1": 0.05, "l2": 0.03, "weight_decay": 0.1},
    "goes on": {"earlier_steps": 3, "learning_rate": RATE, "ema_conf": {"decay": 0.9, "warmup": True}},
    "bounds the norm": {"clip_global_norm": 2.0, "param_settings": [{"match": "w2", "weight_decay": 0.1}]},
}
KINDS: dict[str, dict[str, Any]] = {
    **{kind.name: {"type": kind} for kind in UpdaterType if kind is not UpdaterType.kUserUpdater},
    "kRMSProp": {"type": "kRMSProp", "rmsprop_conf": {"rho": 0.8, "centered": True}},
    "corrected": {"type": "kAdam", "adam_conf": {"beta1": 0.8, "bias_correction": True}},
    "momentum": {"type": "kNesterov", "momentum": 0.9},
    "moving momentum": {"type": "kSGD", "momentum_conf": {"final_momentum": 0.8, "saturation_step": 4}},
    "powers": {"user_type": "test-updater-of-powers"},
    "exponentials": {"user_type": "test-updater-of-exponentials"},
}
SHAPES = {"w1": (5, 7), "b1": (7,), "w2": (4, 4), "b2": (3,), "large": (LARGEST + 1,), "mean": (7,)}
TURNS = (SHAPES, SHAPES, ("b1", "w2", "mean"), SHAPES, ("w1", "b2", "large"), [*reversed(SHAPES)])


@register("updater", "test-updater-of-powers")
class OfPowers(Updater):
    """A formula with more arithmetic on the rate than others, on both sides, and with arrays of its own."""

    slots = ("history",)

    def change(self, lr: float, w: Any, g: Any, slots: Any, t: Any, s: Any) -> None:
        w += -lr * g + (2 - lr**2) * (lr / 3 + lr - 1) / 1e3 * slots[0]
        np.maximum(slots[0], g * g / (1 + lr), out=slots[0])


@register("updater", "test-updater-of-exponentials")
class OfExponentials(Updater):
    """A formula that no program expresses, and that looks at its rate."""

    def change(self, lr: float, w: Any, g: Any, slots: Any, t: Any, s: Any) -> None:
        w -= np.multiply(np.tanh(g, out=t), lr if lr > 0.03 else math.sqrt(lr), out=s)


def param_of(name: str) -> Param:
    spec = ParamSpec("weight", SHAPES[name], trainable=name != "mean")
    return Param(name, spec, ParamConf(lr_scale=2 if name == "b2" else 1))


class EachAlone:
    """Params that are updated one after the other by their updaters, with factors that bound the norm of all."""

    def __init__(self, updater: Updater, params: dict[str, np.ndarray]):
        self.updater, self.params = updater, copy.deepcopy(params)
        self.state: dict[str, dict[str, np.ndarray]] = {}

    def step(self, step: int, gradients: dict[str, np.ndarray], max_norm: float) -> None:
        trained = {name: gradient.reshape(-1) for name, gradient in gradients.items() if name != "mean"}
        factor = min(1.0, max_norm / norm_of([*self._joined(trained)])) if max_norm else 1.0
        if limit := self.updater.conf.clip_global_norm:
            norm = math.sqrt(math.fsum(map(sum_of_squares, trained.values())))
            factor *= norm_factor(norm * factor, limit)
        for name, gradient in trained.items():
            updater, value, param = self.updater.of(name, SHAPES[name]), self.params[name], param_of(name)
            state = self.state.setdefault(name, updater.initial_state(value.reshape(-1)))
            scaled = gradient * np.float32(factor) if factor != 1.0 else gradient
            updater.update(step, value.reshape(-1), scaled, state, param.lr_scale, 1.0, param.shape)
        if "mean" in gradients:
            self.params["mean"] = gradients["mean"]

    def _joined(self, trained: dict[str, np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the gradients whose norms are taken together: joined ones of each updater, then single ones."""
        groups: dict[Any, list[np.ndarray]] = {}
        for name, gradient in trained.items():
            updater = self.updater.of(name, SHAPES[name])
            is_single = updater.whole or name in ("large", "b2")
            groups.setdefault((is_single, name if is_single else id(updater)), []).append(gradient)
        for key in sorted(groups, key=lambda key: key[0]):
            yield np.concatenate(groups[key])


WAYS = ["pushed", "pushed together", "given"]
# Each kind with each setting, and in turn in each way: so each meets all ways.
CHOICES = [(kind, name, WAYS[(k + j) % 3]) for k, kind in enumerate(KINDS) for j, name in enumerate(SETTINGS)]


@pytest.mark.parametrize(("kind", "settings", "way"), CHOICES)
def test_joined_params_get_the_bits_that_each_would_get_alone(kind: str, settings: str, way: str) -> None:
    fields = {"rmsprop_conf": {"rho": 0.8}, **SETTINGS[settings], **KINDS[kind], "delta": 1e-3}
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    alone = EachAlone(create_updater(UpdaterConf(**fields)), params)
    updater = LocalUpdater(create_updater(UpdaterConf(**fields)), {name: param_of(name) for name in SHAPES})
    updater.put(params)
    values, max_norm = (params, 1.5) if way == "given" else (updater.values, 0.0)
    arrays = dict(values)
    for step, names in enumerate(TURNS):
        if step == 2:
            updater.set_rate_factors({3: 0.5})
            alone.updater.set_rate_factors({3: 0.5})
        gradients = {name: rng.standard_normal(SHAPES[name]).astype(np.float32) for name in names}
        alone.step(step, gradients, max_norm)
        if way == "given":
            updater.step(params, gradients, max_norm)
        elif way == "pushed together":
            assert updater.push_all(gradients) is None
            updater.finish()
        else:
            for name, gradient in gradients.items():
                updater.push(name, gradient)
            updater.finish()
        for name, value in alone.params.items():
            np.testing.assert_array_equal(values[name], value, err_msg=f"{name} after step {step}")
            assert values[name] is arrays[name]  # changed in place
    np.testing.assert_equal({name: updater.state[name] for name in alone.state}, alone.state)


@pytest.mark.parametrize("kind", KINDS)
def test_formulas_of_all_steps_are_one_program(kind: str) -> None:
    """But those of whole params, of the user's, and those that compare a number of their step."""
    updater = create_updater(UpdaterConf(**{"rmsprop_conf": {"rho": 0.8}, **KINDS[kind]}))
    traced = trace_series(Formulas(updater), len(updater.slots), (False, False, True))
    assert (traced is None) == (updater.whole or kind in ("moving momentum", "exponentials", "powers"))
    for step in (0, 3) if traced else ():
        formula = Formulas(updater).at(step)
        assert traced.formula(formula.numbers) == trace(formula, len(updater.slots))


def test_gradients_that_are_not_finite_are_not_queued() -> None:
    """The first of them is named, also where the norm of finite ones is too large for float32."""
    net = net_of("momentum")
    params, updater = net.initial_params(), net.updater()
    updater.put(params)
    gradients = {name: np.full_like(value, 1e30) for name, value in params.items()}
    assert updater.push_all(gradients) is None
    updater.discard()
    gradients["b1"][0], gradients["w2"][1] = np.nan, np.inf
    assert updater.push_all(gradients) == "b1"  # which has an lr_scale, and is not joined
    gradients["b1"][0] = 1
    assert updater.push_all(gradients) == "w2"
    updater.finish()
    np.testing.assert_equal(dict(updater.values), params)
    refused(lambda: updater.push_all({"w": gradients["w1"]}), "no param of the net")


@pytest.mark.parametrize("way", ["state is set", "pickled"])
def test_an_updater_goes_on_from_a_state(way: str) -> None:
    net = net_of("Adam")
    unbroken, updater = net.initial_params(), net.updater()
    train(net, updater, unbroken, 2)
    params = copy.deepcopy(unbroken)
    if way == "pickled":
        resumed = pickle.loads(pickle.dumps(updater))
    else:
        resumed = net.updater()
        train(net, resumed, net.initial_params(), 1)  # its own state is replaced
        resumed.state, resumed.steps = copy.deepcopy(updater.state), updater.steps
    train(net, updater, unbroken, 2)
    train(net, resumed, params, 2)
    np.testing.assert_equal(params, unbroken)


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
def test_the_norm_of_all_gradients_is_clipped_as_by_pytorch(max_norm: float) -> None:
    """torch divides by the norm + 1e-6."""
    torch = pytest.importorskip("torch")
    net = net_of("momentum")
    net.job.updater.clip_global_norm = 0.5
    params, updater = net.initial_params(), net.updater()
    tensors = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in params.items()}
    rates = {"w1": 0.01, "b1": 0.02, "w2": 0.1, "b2": 0.01}
    peer = torch.optim.SGD([{"params": [tensors[name]], "lr": lr} for name, lr in rates.items()], momentum=0.9)
    rng = np.random.default_rng(1)
    for step in range(4):
        gradients = {
            name: rng.normal(0, 0.01 if step == 2 else 1, value.shape).astype(np.float32)
            for name, value in params.items()
        }
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradients[name])
        torch.nn.utils.clip_grad_norm_(tensors.values(), max_norm or 0.5)
        peer.step()
        updater.step(params, gradients, max_norm)
        for name, tensor in tensors.items():
            np.testing.assert_allclose(params[name], tensor.detach().numpy(), rtol=1e-5, atol=1e-6)
