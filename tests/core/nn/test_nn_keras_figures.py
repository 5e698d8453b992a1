"""Layers of nn compute what Keras's compute; ``tests/support/keras_figures.py`` says how its figures were made."""

import json
from typing import Any

import numpy as np
import pytest

from dsinga import extensions as callbacks
from dsinga import nn
from dsinga.job import Job
from dsinga.testing import SimulatedLoop
from dsinga.training.updater import factor_at
from tests.support.keras_figures import FILE, LAYERS, TRAINING, callback_cases, numbers, training_data

FIGURES = json.loads(FILE.read_text())
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def layer_of(kind: str, arguments: dict[str, Any]) -> Any:
    *wrapper, kind = kind.split()
    layer = getattr(nn, kind)(**arguments)
    return nn.Bidirectional(layer) if wrapper else layer


def one_direction(kind: str, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    """Return Keras's weights of a recurrent layer as params: of a GRU those of each gate, z, r and c, by themselves."""
    gates = 3 if kind == "GRU" else 1
    kernels, recurrents = (np.split(array, gates, axis=1) for array in (kernel, recurrent))
    return [*(array.T for array in (*kernels, *recurrents)), *np.split(bias, gates)]


def channels_first(kernel: np.ndarray) -> np.ndarray:
    """Return Keras's kernel (kh, kw, C, F), or one of volumes, as (F, C·kh·kw)."""
    return np.moveaxis(kernel, (-1, -2), (0, 1)).reshape(kernel.shape[-1], -1)


def params_of(kind: str, record: tuple[int, ...], arguments: dict[str, Any]) -> list[np.ndarray]:
    """Return params as Keras's layer has its weights, which are ``numbers`` of their shapes."""
    if "Conv" in kind:
        size, filters = arguments["kernel_size"], arguments.get("filters", 0)
        channels = record[-1] // arguments.get("groups", 1)
        size = size if isinstance(size, tuple) else (size,) * (len(record) - 1 - ("LSTM" in kind))
        if kind in ("DepthwiseConv2D", "SeparableConv2D"):
            multiplier = arguments["depth_multiplier"]
            kernel = np.moveaxis(numbers(*size, channels, multiplier), (2, 3), (0, 1))
            of_channels, outputs = kernel.reshape(channels * multiplier, -1), channels * multiplier
            if not filters:
                return [of_channels, numbers(outputs)]
            return [of_channels, channels_first(numbers(1, 1, outputs, filters)), numbers(filters)]
        if kind == "Conv1D":
            return [numbers(*size, channels, filters).reshape(-1, filters).T, numbers(filters)]
        if kind == "ConvLSTM2D":
            kernels = [numbers(*size, inputs, 4 * filters) for inputs in (channels, filters)]
            return [*map(channels_first, kernels), numbers(4 * filters)]
        sides = (filters, channels) if kind.endswith("Transpose") else (channels, filters)
        return [channels_first(numbers(*size, *sides)), numbers(filters)]
    *wrapper, kind = kind.split()
    gates = {"GRU": 3, "LSTM": 4, "SimpleRNN": 1}.get(kind)
    if gates is None:
        return []
    units, inputs = arguments["units"], record[-1]
    bias = numbers(2, gates * units)[0] if kind == "GRU" else numbers(gates * units)
    one = one_direction(kind, numbers(inputs, gates * units), numbers(units, gates * units), bias)
    return one * (2 if wrapper else 1)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_keras_computes(name: str):
    kind, arguments, record = LAYERS[name]
    x, images, frames = numbers(3, *record), len(record) in (3, 4), kind == "ConvLSTM2D"
    data_format = {"data_format": "channels_last"} if images and not frames else {}
    if frames:
        x = np.ascontiguousarray(np.moveaxis(x, -1, 2))
    model = nn.Sequential([nn.Input(x.shape[1:] if frames else record, **data_format), layer_of(kind, arguments)])
    model.set_weights(params_of(kind, record, arguments))
    y = model.predict(x)
    y = np.moveaxis(y, -3, -1) if frames else y
    np.testing.assert_allclose(y, FIGURES["layers"][name], **CLOSE)


def trained(name: str, **more: Any) -> tuple[nn.Sequential, list[float]]:
    """Return the net of a case of training, trained as in Keras, and the losses of its epochs."""
    case = TRAINING[name]
    settings = {
        argument: getattr(nn, value[0])(**value[1]) if isinstance(value, tuple) else value
        for argument, value in case.get("layer", {}).items()
    }
    model = nn.Sequential([nn.Input(4), nn.Dense(3, activation="softmax", **settings)])
    kind, arguments = case.get("optimizer", ("SGD", {"learning_rate": 0.1}))
    if "schedule" in case:
        arguments = {"learning_rate": nn.ExponentialDecay(**case["schedule"])}
    model.compile(getattr(nn, kind)(**arguments), "sparse_categorical_crossentropy")
    model.set_weights([numbers(4, 3).T, numbers(3)])
    losses: list[float] = []
    for epochs in case.get("fits", (3,)):
        arguments = {"batch_size": 12, "epochs": epochs, "progress": False, **case.get("fit", {}), **more}
        losses += model.fit(*training_data(), **arguments).history["loss"]
    return model, losses


GOES_ON = ("momentum", "adam", "rmsprop", "schedule")


@pytest.mark.parametrize("name", [*GOES_ON, "class_weight"])
def test_a_further_fit_goes_on_and_weights_of_classes_count_as_in_keras(name: str):
    model, losses = trained(name)
    figures = FIGURES["training"][name]
    np.testing.assert_allclose(losses, figures["loss"], **CLOSE)
    for weight, figure in zip(model.get_weights(), figures["weights"], strict=True):
        # Keras's epsilon of Adam is in the correction of the bias.
        np.testing.assert_allclose(weight.T, figure, **(CLOSE if name != "adam" else {"rtol": 0, "atol": 5e-5}))


PENALISED = ("l1", "l2", "l1 and l2", "by name")


@pytest.mark.parametrize("name", PENALISED)
def test_penalties_move_params_as_in_keras(name: str):
    model, losses = trained(name)
    figures = FIGURES["training"][name]
    for weight, figure in zip(model.get_weights(), figures["weights"], strict=True):
        np.testing.assert_allclose(weight.T, figure, **CLOSE)
    assert losses[0] < figures["loss"][0]  # Keras adds the penalty to the loss that it reports


@pytest.mark.parametrize("kind", ["EarlyStopping", "ReduceLROnPlateau"])
def test_callbacks_stop_and_lower_the_rate_at_the_epochs_of_keras(kind: str):
    for case, expected in zip(callback_cases(), FIGURES["callbacks"], strict=True):
        if case["kind"] == kind:
            np.testing.assert_allclose(rates_of(case), expected, rtol=1e-6, err_msg=str(case))


def rates_of(case: dict[str, Any]) -> list[float]:
    """Return the rate of each epoch that a callback lets a simulated run train, of 1 at first."""
    name, values, epochs = case["arguments"]["monitor"].removeprefix("val_"), case["values"], len(case["values"])
    if "min_lr" in case["arguments"]:  # that of a simulated run is its job's
        case["arguments"]["min_lr"] *= Job().updater.learning_rate.base_lr

    def metrics_of(phase: str, step: int) -> dict[str, float]:
        return {name: values[min(step // 10, epochs) - 1]}

    callback = getattr(callbacks, case["kind"])(**case["arguments"])
    loop = SimulatedLoop([callback], metrics_of, train_steps=10 * epochs).run()
    factors = sorted(loop.rate_factors.items())
    return [factor_at(factors, 10 * epoch) for epoch in range(loop.step // 10)]
