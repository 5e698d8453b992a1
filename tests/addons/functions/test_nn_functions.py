"""Losses, layers and metrics that are functions of JAX, autograd or PyTorch: gradients, cuts, processes, saving."""

import gc
import importlib
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import UserError, nn
from dsinga.addons.functions.probing import KEPT, probe
from dsinga.base.errors import Diverged
from dsinga.job.functions import MOST_LOCAL, find_function, name_of
from dsinga.testing import LayerCase, LayerContract
from tests.support.programs import python
from tests.support.refusals import refused
from tests.support.registries import restored_registry

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype(np.float32)
Y = RNG.normal(size=(96, 3)).astype(np.float32)
CLASSES = np.arange(96) % 3


def functions(library: str) -> dict[str, Callable[..., Any]]:
    """Return losses in a library: squared error, quantile, focal, contrastive, the squared divergence of a field."""
    pytest.importorskip(library)
    xp: Any = importlib.import_module("torch" if library == "torch" else f"{library}.numpy")
    return {
        "mse": lambda y, p: xp.mean((y - p) ** 2, -1),
        "quantile": lambda y, p: xp.maximum(0.9 * (y - p), -0.1 * (y - p)),
        "focal": lambda y, p: -((y - p) ** 2) * (y * xp.log(p) + (1 - y) * xp.log(1 - p)),
        "contrastive": lambda y, d: y * d**2 + (1 - y) * xp.maximum(1 - d, 0 * d) ** 2,
        "physics": lambda y, f: (f[:, 1:] - 2 * f[:, :-1] - y[:, 1:]) ** 2,
    }


def closed(name: str, y: Any, p: Any) -> tuple[Any, Any]:
    """Return the losses of rows and their derivatives by p."""
    if name == "mse":
        return (y - p) ** 2, 2 * (p - y)
    if name == "quantile":
        return np.maximum(0.9 * (y - p), 0.1 * (p - y)), np.where(y > p, -0.9, 0.1)
    if name == "focal":
        logs = y * np.log(p) + (1 - y) * np.log(1 - p)
        return -((y - p) ** 2) * logs, 2 * (y - p) * logs - (y - p) ** 2 * (y / p - (1 - y) / (1 - p))
    if name == "contrastive":
        return y * p**2 + (1 - y) * (1 - p) ** 2, 2 * y * p - 2 * (1 - y) * (1 - p)
    rest = p[:, 1:] - 2 * p[:, :-1] - y[:, 1:]
    slope = np.zeros_like(p)
    slope[:, 1:] += 2 * rest
    slope[:, :-1] -= 4 * rest
    return rest**2, slope * 3 / 2


@pytest.mark.parametrize("library", ["torch", "jax", "autograd"])
def test_losses_and_their_gradients_are_those_of_closed_forms(library: str, caplog: Any):
    y, p = RNG.uniform(size=(5, 3)), RNG.uniform(0.1, 0.9, (5, 3))
    for name, loss in functions(library).items():
        with caplog.at_level(logging.INFO):
            found = probe(loss, ((3,), (3,)), 0).function
        assert "agrees with finite differences" in caplog.messages[-1]
        value, pull = found.compute([y, p], [False, True])
        losses, slopes = closed(name, y, p)
        np.testing.assert_allclose(value.reshape(5, -1).mean(1), losses.mean(1), rtol=1e-6)
        size = value[0].size
        np.testing.assert_allclose(pull(np.full(value.shape, 1 / size))[1], slopes / 3, rtol=1e-6)


def model(loss: Any, metrics: Any = None) -> nn.Sequential:
    made = nn.Sequential([nn.Input(6), nn.Dense(8, "tanh"), nn.Dense(3)])
    made.compile(nn.Adam(0.01), loss, metrics=metrics)
    return made


def torch_mse(y: Any, p: Any) -> Any:
    return torch.mean((y - p) ** 2, dim=-1)


def scalar_mse(y: Any, p: Any) -> Any:
    return torch.mean((y - p) ** 2)


def cross_entropy(y: Any, p: Any) -> Any:
    return torch.nn.functional.cross_entropy(p, y, reduction="none")


def worst(y: Any, p: Any) -> Any:
    return torch.amax(torch.abs(y - p))


def near(y: Any, p: Any) -> Any:
    return torch.mean((torch.abs(y - p) < 1).float(), dim=-1)


@pytest.mark.parametrize("loss", [torch_mse, scalar_mse])
@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, 96)])
@pytest.mark.parametrize("more", [{}, {"workers": 2}])
def test_a_function_trains_as_the_loss_of_the_same_formula(loss: Any, weights: Any, more: dict[str, Any]):
    ours, built_in = model(loss), model("mse")
    for each in (ours, built_in):
        each.fit(X, Y, epochs=3, sample_weight=weights, progress=False, **more)
    for name, array in built_in.params.items():
        np.testing.assert_allclose(ours.params[name], array, atol=2e-6)
    assert ours.evaluate(X, Y)["loss"] == pytest.approx(built_in.evaluate(X, Y)["loss"], rel=1e-5)


def test_classes_accuracy_and_metrics_that_are_functions():
    ours = model(cross_entropy, ["accuracy"])
    built_in = model("sparse_categorical_crossentropy", ["accuracy"])
    for each in (ours, built_in):
        each.fit(X, CLASSES, epochs=3, progress=False)
    assert ours.evaluate(X, CLASSES) == pytest.approx(built_in.evaluate(X, CLASSES), rel=1e-5)
    numbers = model("mse", [worst, near])
    numbers.fit(X, Y, progress=False)
    errors = np.abs(numbers.predict(X) - Y)
    found = numbers.evaluate(X, Y)
    assert found["worst"] == pytest.approx(errors.max(), rel=1e-5)
    assert found["near"] == pytest.approx((errors < 1).mean(), rel=1e-5)


class Tanh(nn.Layer):
    """A dense layer with tanh, in PyTorch."""

    def __init__(self, units: int, **more: Any):
        super().__init__(**more)
        self.units = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        return torch.tanh(torch.matmul(x, self.kernel) + self.bias)


class Block(nn.Layer):
    """A layer of layers."""

    def __init__(self, units: int):
        super().__init__()
        self.first, self.second = nn.Dense(units, "relu"), nn.Dense(units)

    def call(self, x: Any, training: Any = None) -> Any:
        return x + self.second(self.first(x), training=training)


def function(name: str, kind: str = "function", **more: Any) -> dict[str, Any]:
    return {f"{kind}_conf": {"function": name if ":" in name else f"{__name__}:{name}", **more}}


PAIR = [(5, 3), (5, 3)]


class TestFunction(LayerContract):
    cases = [
        LayerCase("kFunction", [(5, 4)], function("Tanh", arguments='{"units": 3}')),
        LayerCase("kFunction", PAIR, function("torch:hypot"), "two"),
        LayerCase("kFunctionLoss", PAIR, function("torch_mse", "functionloss", scale=0.5)),
        LayerCase("kFunctionLoss", PAIR, function("scalar_mse", "functionloss"), "scalar"),
        LayerCase("kFunctionLoss", [*PAIR, (5,)], function("scalar_mse", "functionloss"), "weights"),
        LayerCase("kFunctionLoss", [(5, 4), (5,)], function("cross_entropy", "functionloss"), "classes", classes=4),
    ]


class Broken(nn.Layer):
    """A layer of layers whose ``call`` reads a name that is not there."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x) * undefined  # type: ignore[name-defined]  # noqa: F821


def own_net() -> nn.Model:
    x = nn.Input(6)
    h = nn.Lambda(lambda pair: torch.exp(-pair[0]) * pair[1])([Tanh(4)(x), nn.Dense(4)(x)])
    return nn.Model(x, nn.Dense(3)(Block(4)(h)))


@pytest.mark.ci
@pytest.mark.process
def test_own_layers_on_processes_resumed_and_saved(processes: Any, tmp_path: Path):
    alone, together = own_net(), own_net()
    for each in (alone, together):
        each.compile(nn.Adam(0.01), torch_mse)
    alone.fit(X, Y, epochs=4, progress=False)
    together.fit(X, Y, epochs=4, progress=False, client=processes, workers=2, workspace=tmp_path / "run")
    for name, array in alone.params.items():
        np.testing.assert_allclose(together.params[name], array, atol=1e-6)
    alone.save(tmp_path / "saved")
    np.testing.assert_array_equal(nn.load_model(tmp_path / "saved").predict(X), alone.predict(X))


def test_a_run_with_functions_resumes_to_the_same_bits(tmp_path: Path):
    job = own_net().job(X, epochs=2)
    unbroken, broken = own_net(), own_net()
    for each in (unbroken, broken):
        each.compile(nn.Adam(0.01), torch_mse)
    unbroken.fit(X, Y, epochs=4, progress=False)
    stop = lambda step, metrics: step >= 6  # noqa: E731
    broken.fit(X, Y, epochs=4, callbacks=[stop], workspace=tmp_path, progress=False, checkpoint_freq=3)
    broken.fit(X, Y, epochs=4, workspace=tmp_path, resume=True, progress=False)
    for name, array in unbroken.params.items():
        np.testing.assert_array_equal(broken.params[name], array)
    assert f'function: "{__name__}:Tanh"' in str(job)


def test_models_share_the_params_of_their_layers():
    encoder = nn.Sequential([nn.Input(6), nn.Dense(4, "tanh")])
    x, z = nn.Input(6), nn.Input(4)
    decoder = nn.Model(z, nn.Dense(6)(z))
    whole = nn.Model(x, decoder(encoder(x)))
    whole.compile("adam", "mse")
    whole.fit(X, X, epochs=2, progress=False)
    np.testing.assert_allclose(decoder.predict(encoder.predict(X)), whole.predict(X), atol=1e-6)
    np.testing.assert_array_equal(encoder(X[:3]), encoder.predict(X[:3]))
    feature = nn.Model(encoder.input, encoder.layers[0].output)
    assert [param.shape for param in feature.params.values()] == [(4, 6), (4,)]
    twice = nn.Model(x, nn.Add()([encoder(x), encoder(x * 2.0)]))
    assert len(twice.params) == 2
    np.testing.assert_array_equal(twice.params["dense_weight"], encoder.params["dense_weight"])
    decoder.set_weights([np.zeros_like(array) for array in decoder.get_weights()])
    assert not whole.predict(X).any()


def test_a_composed_model_is_the_flat_one():
    def flat(x: Any) -> Any:
        return nn.Dense(3)(nn.Dense(5, "relu")(x) * 0.5 + 1.0)

    x, inner = nn.Input(6), nn.Input(6)
    composed = nn.Sequential([nn.Model(inner, nn.Dense(5, "relu")(inner) * 0.5 + 1.0), nn.Dense(3)])
    models = [nn.Model(x, flat(x)), composed]
    for each in models:
        each.compile("sgd", "mse")
        each.fit(X, Y, progress=False)
    first, second = (each.predict(X) for each in models)
    np.testing.assert_array_equal(first, second)
    expected = np.maximum(X @ models[0].params["dense_weight"].T + models[0].params["dense_bias"], 0) * 0.5 + 1
    expected = expected @ models[0].params["dense_1_weight"].T + models[0].params["dense_1_bias"]
    np.testing.assert_allclose(first, expected, atol=1e-5)


def test_activations_that_are_functions():
    x = nn.Input(6)
    first = nn.Model(x, nn.Dense(3, torch.tanh, name="d")(x))
    second = nn.Model(x, nn.Activation(torch.tanh)(nn.Dense(3, nn.activations.linear, name="d")(x)))
    expected = np.tanh(X @ first.params["d_weight"].T + first.params["d_bias"])
    for model_ in (first, second):
        np.testing.assert_allclose(model_.predict(X), expected, atol=1e-6)


FAULTS = {
    "nn.Sequential([nn.Input(6), nn.Dense(4), nn.Lambda(lambda h: np.sort(np.asarray(h))), nn.Dense(3)])": "the params "
    "of 'dense' below need it",
    "model(lambda y, p: torch.mean((y - p) ** 2, -1) * p.std())": "mixes the rows of a batch",
    "model(lambda y, p: torch.sum((y - p) ** 2))": "adds up the losses of the rows of a batch; return a loss for each",
    "model(lambda y, p: torch.argmax(p, -1))": "returns int64; return floats",
    "model(lambda y, p: {'a': p})": "returns builtins.dict, of which no gradient is known",
    "model(lambda y, p: ((y - p) ** 2).mean(-1)[:2])": "returns 2 for 4 rows; return an array whose first axis is that",
    "model(lambda y, p: ((y - p) ** 2) if len(y) in (1, 4) else ((y - p) ** 2).mean(-1))": "its function returns the "
    "shape (32,) for 32 rows; it must be (32, 3)",
    "model(lambda y, p: 1.0)": "it returns builtins.float, of which no gradient is known; return an array of JAX, auto",
    "model(lambda y, p: None)": "it returns builtins.NoneType, of which no gradient is known",
    "nn.Sequential([nn.Input(6), nn.Lambda(lambda h: h.sum(0)), nn.Dense(3)])": "returns 6 for 4 rows; return an array",
    "model(lambda y, p: torch.nope(p))": "AttributeError: module 'torch' has no attribute 'nope'",
    "model(lambda y, p: torch.mean((y.ravel()[:4] - p) ** 2, -1))": "fails for labels (4, 3), predictions (4, 3): "
    "RuntimeError: The size of tensor a (4) must match",
    "model(lambda y, p: ((y - p) ** 2).mean(-1).detach())": "is 0 everywhere, so that it would train nothing",
    "model(torch.no_grad()(lambda y, p: torch.mean((y - p) ** 2)))": "as by detach(), no_grad() or stop_gradient()",
    "model(lambda y, p: np.abs(np.asarray(y) - np.asarray(p)))": "the function <lambda> returns numpy's arrays",
    "nn.Sequential([Broken(), nn.Dense(3)])": "function of the layer Broken fails for features: NameError: name "
    "'undefined' is not",
    "nn.Sequential([nn.Lambda(lambda h: nn.Dense(3)(h) + [1].x, name='own')])": "function of the layer own fails for "
    "features: AttributeError: 'list' object has no attribute 'x'",
    "nn.Lambda(lambda x: x.numpy())(nn.Input(4))": "the function <lambda> fails for rows (4, 4) float32: ",
    "nn.Lambda(lambda x: x + np.random.normal(size=x.shape))(nn.Input(4))": "gives other numbers when it is called "
    "again for the same rows; give random numbers as an input of the model",
    "nn.Lambda(3)": "Lambda takes a function, not 3",
}


def trained(statement: str) -> None:
    made = eval(statement)
    if statement.startswith("nn."):
        made.compile("sgd", "mse")
    made.fit(X, Y, progress=False)


@pytest.mark.parametrize("statement", FAULTS)
def test_what_is_wrong_with_a_function_is_one_sentence_before_training(statement: str):
    with restored_registry():
        with pytest.raises(UserError) as error:
            trained(statement)
    assert FAULTS[statement] in str(error.value)


def test_a_function_that_gives_nan_is_named():
    with pytest.raises(Diverged, match="the function of 'loss' is the first that is not; guard its roots, logarithms"):
        model(lambda y, p: torch.log(p - 9).mean(-1)).fit(X, Y, progress=False)


@pytest.mark.process
def test_a_function_that_cannot_be_sent_is_refused_before_training(processes: Any):
    here: dict[str, Any] = {"torch": torch, "lock": threading.Lock()}  # of a program: sent with its functions
    exec("def locked(y, p):\n    with lock: return torch.mean((y - p) ** 2, -1)", here)
    with restored_registry(), pytest.raises(UserError, match="'loss' cannot be sent to Dask workers .*lock"):
        model(here["locked"]).fit(X, Y, client=processes, workers=2, progress=False)


def test_a_saved_lambda_is_never_another_one(tmp_path: Path, caplog: Any):
    def made(number: float) -> nn.Sequential:
        return nn.Sequential([nn.Input(6), nn.Lambda(lambda h: torch.tanh(h) * number)])

    with restored_registry(), caplog.at_level(logging.WARNING):
        made(2.0).save(tmp_path)
    assert "only if it makes the same functions; use a function of a module" in caplog.text
    with restored_registry():
        made(-7.0)
        refused(lambda: nn.load_model(tmp_path).predict(X), "is not the same in", "use a function")
        made(2.0)
        np.testing.assert_allclose(nn.load_model(tmp_path).predict(X), 2 * np.tanh(X), rtol=1e-5)


LAMBDAS = """
import functools, numpy as np
factor, items = 2.0, {"b", "a", "c"}
class Scaled:
    def __init__(self, scale): self.scale = scale
    def __call__(self, x): return x * self.scale
class Negated(Scaled):
    def __call__(self, x): return -super().__call__(x)
def outer(inner): return lambda x, y=3: inner(x) * factor
made = [lambda x: x * 2, lambda x: x * 3, lambda x: abs(x), lambda x, y=1: x, lambda x, *, y=2: x, lambda x: x in items,
        functools.partial(max, 1), functools.partial(max, 2), outer(lambda x: x), outer(lambda x: -x),
        outer(functools.partial(np.power, 2.0)), lambda x: (lambda: x + 1)(), lambda x: (lambda: x + 2)(),
        Scaled(2), Scaled(3), Negated(3)]
"""


def test_names_of_lambdas_are_those_of_their_code_in_each_process():
    code = f"{LAMBDAS}\nfrom dsinga.job.functions import name_of\nprint(*map(name_of, made))"
    ran = python("-c", code, environment={"PYTHONHASHSEED": "7"})
    spaces: list[dict[str, Any]] = [{"__name__": "__main__"} for _ in range(2)]
    with restored_registry():
        for space in spaces:
            exec(LAMBDAS, space)
        names, again = ([name_of(function) for function in space["made"]] for space in spaces)
        assert ran.stdout.split() == names
        assert len(set(names)) == len(names)
        assert all(find_function(name) is function for name, function in zip(names, spaces[0]["made"], strict=True))
        assert [first == second for first, second in zip(names, again, strict=True)].count(False) == 7
        spaces[1]["factor"] = 5.0
        assert find_function(again[8])(1) == 5.0  # what reads a name that may change is not shared
        assert find_function(names[8])(1) == 2.0


class Scaled:
    """A function whose factor may change."""

    def __init__(self) -> None:
        self.factor: Any = 1.0

    def __call__(self, h: Any) -> Any:
        return h * self.factor


FACTOR: Any = 1.0


def changing() -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
    """Return functions of an array of JAX that multiply by what changes from 1 to 5, each with what changes it."""
    import jax.numpy as jnp

    number, array, items, scaled = 1.0, np.ones(6, np.float32), [{"a": 1.0}], Scaled()

    def rebind() -> None:
        nonlocal number
        number = 5.0

    def of_items(h: Any) -> Any:
        return jnp.tanh(h) * items[0]["a"]

    return {
        "a name": (lambda h: jnp.tanh(h) * number, rebind),
        "a global name": (lambda h: jnp.tanh(h) * FACTOR, lambda: globals().update(FACTOR=5.0)),
        "an array": (lambda h: jnp.tanh(h) * array, lambda: array.fill(5)),
        "a default": (lambda h, factor=array: jnp.tanh(h) * factor, lambda: array.fill(5)),
        "a list of dicts": (of_items, lambda: items[0].update(a=5.0)),
        "a function of these": (lambda h: of_items(h), lambda: items[0].update(a=5.0)),
        "an attribute": (lambda h: jnp.tanh(h) * scaled.factor, lambda: setattr(scaled, "factor", jnp.full(6, 5.0))),
        "an object": (lambda h, call=scaled: call(jnp.tanh(h)), lambda: setattr(scaled, "factor", 5.0)),
    }


@pytest.mark.parametrize("kind", ["a name", "a global name", "an array", "a default", "a list of dicts",
                                  "a function of these", "an attribute", "an object"])  # fmt: skip
def test_a_function_of_jax_follows_what_it_reads(kind: str, caplog: Any, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("jax")
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    function, change = changing()[kind]
    with restored_registry(), caplog.at_level(logging.WARNING):
        made = nn.Sequential([nn.Input(6), nn.Lambda(function)])
        np.testing.assert_allclose(made.predict(X), np.tanh(X), rtol=1e-5)
        made.predict(X)
        assert not caplog.records
        change()
        np.testing.assert_allclose(made.predict(X), 5 * np.tanh(X), rtol=1e-5)
    assert "reads values that have changed: JAX compiles it again after each change" in caplog.text


@pytest.mark.ci
def test_what_is_compiled_for_a_function_goes_with_the_model():
    jax = pytest.importorskip("jax")
    kept = [weakref.ref(probe(lambda h, k=k: jax.numpy.tanh(h * k), ((6,),)).function) for k in range(2 * KEPT)]
    held = probe(lambda h: jax.numpy.sin(h), ((6,),))
    gc.collect()
    assert sum(function() is not None for function in kept) < KEPT
    for k in range(KEPT):
        probe(lambda h, k=k: jax.numpy.cos(h * k), ((6,),))
    assert probe(held.function.function, ((6,),)) is held


def test_functions_without_a_module_go_with_the_models():
    made: Callable[[Any], Any] = lambda array: lambda h: h * array  # noqa: E731
    with restored_registry():
        held = made(np.ones(6))
        name, freed = name_of(held), []
        for k in range(2 * MOST_LOCAL):
            function = made(np.full(6, k))
            name_of(function)
            freed.append(weakref.ref(function))
            del function
        assert sum(function() is not None for function in freed) == MOST_LOCAL
        assert find_function(name) is held
        assert name_of(held) == name


def test_a_gradient_that_is_cut_off_is_said(caplog: Any):
    with caplog.at_level(logging.WARNING):
        probe(lambda y, p: ((y - p.detach()) ** 2).mean(-1) + p.mean(-1), ((3,), (3,)), 0)
    assert "differs from finite differences: it cuts off gradients" in caplog.text


def test_dsinga_nn_and_convert_load_none_of_the_three_libraries():
    code = "import sys, dsinga.convert; print([name for name in ('torch', 'jax', 'autograd') if name in sys.modules])"
    done = python("-c", code)
    assert done.stdout == "[]\n"
