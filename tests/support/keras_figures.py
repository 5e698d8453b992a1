"""What Keras computes for the cases below, stored for the tests, which run without Keras.

In an environment of its own with Keras and JAX::

    pip install keras jax && KERAS_BACKEND=jax python -m tests.support.keras_figures

writes ``tests/core/nn/keras_figures.json``, with Keras's version. Images have their channels last there. (Keras's
backend for PyTorch computes other means of windows whose padding is odd; that for TensorFlow made the figures of
transposed convolution, upsampling, padding and cropping.)
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parents[1] / "core" / "nn" / "keras_figures.json"
ODD, EVEN = (7, 5, 3), (6, 8, 2)
VOLUME, FRAMES, STEPS = (5, 4, 6, 2), (3, 6, 5, 2), (6, 4)


def of(kind: str, shape: tuple[int, ...], **arguments: Any) -> tuple[str, dict[str, Any], tuple[int, ...]]:
    """Return a case of a layer."""
    return kind, arguments, shape


# By name: the layer, its arguments, and the shape of a record.
LAYERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "conv even window": of("Conv2D", ODD, filters=2, kernel_size=4, padding="same"),
    "conv strides": of("Conv2D", EVEN, filters=2, kernel_size=3, strides=2, padding="same"),
    "conv oblong": of("Conv2D", EVEN, filters=2, kernel_size=(2, 5), strides=(2, 3), padding="same"),
    "grouped conv": of("Conv2D", EVEN, filters=6, kernel_size=3, groups=2, padding="same"),
    "dilated conv": of("Conv2D", EVEN, filters=2, kernel_size=(2, 3), dilation_rate=(3, 2), padding="same"),
    "conv of steps": of("Conv1D", STEPS, filters=4, kernel_size=2, dilation_rate=2, groups=2, padding="same"),
    "grouped conv of volumes": of("Conv3D", VOLUME, filters=4, kernel_size=2, groups=2, dilation_rate=(1, 2, 3)),
    "depthwise conv": of("DepthwiseConv2D", ODD, kernel_size=3, strides=2, depth_multiplier=2, padding="same"),
    "separable conv": of(
        "SeparableConv2D", EVEN, filters=4, kernel_size=(3, 2), depth_multiplier=3, dilation_rate=2, activation="tanh"
    ),
    "max even window": of("MaxPooling2D", ODD, pool_size=2, padding="same"),
    "max strides": of("MaxPooling2D", EVEN, pool_size=3, strides=2, padding="same"),
    "mean even window": of("AveragePooling2D", ODD, pool_size=2, padding="same"),
    "mean strides": of("AveragePooling2D", EVEN, pool_size=(3, 4), strides=2, padding="same"),
    "transposed conv": of("Conv2DTranspose", ODD, filters=2, kernel_size=3, strides=2, padding="same"),
    "transposed conv wide": of("Conv2DTranspose", EVEN, filters=2, kernel_size=(4, 5), strides=(3, 2)),
    "transposed conv narrow": of("Conv2DTranspose", EVEN, filters=2, kernel_size=2, strides=3),
    "upsampling": of("UpSampling2D", ODD, size=(2, 3)),
    "bilinear upsampling": of("UpSampling2D", ODD, size=(2, 3), interpolation="bilinear"),
    "zero padding": of("ZeroPadding2D", ODD, padding=((1, 2), (3, 0))),
    "cropping": of("Cropping2D", ODD, cropping=((1, 2), (0, 1))),
    "conv of volumes": of("Conv3D", VOLUME, filters=2, kernel_size=(2, 3, 4), strides=2, padding="same"),
    "transposed conv of volumes": of("Conv3DTranspose", VOLUME, filters=2, kernel_size=(2, 3, 4), strides=2),
    "max of volumes": of("MaxPooling3D", VOLUME, pool_size=(2, 3, 2), strides=2, padding="same"),
    "mean of volumes": of("AveragePooling3D", VOLUME, pool_size=(2, 3, 2), strides=2, padding="same"),
    "conv LSTM": of(
        "ConvLSTM2D", FRAMES, filters=3, kernel_size=(2, 3), strides=2, padding="same", return_sequences=True
    ),
    "last of conv LSTM": of("ConvLSTM2D", FRAMES, filters=3, kernel_size=4, return_sequences=False),
    "reshape": of("Reshape", (6, 8), target_shape=(4, -1)),
    "flatten": of("Flatten", (6, 8)),
    "last of GRU": of("GRU", STEPS, units=3, return_sequences=False),
    "last of LSTM": of("LSTM", STEPS, units=3, return_sequences=False),
    "last of SimpleRNN": of("SimpleRNN", STEPS, units=3, return_sequences=False),
    "last of both directions": of("Bidirectional SimpleRNN", STEPS, units=3, return_sequences=False),
}


# By name: how a net of one dense layer is trained with all 12 rows in a batch: the optimizer and its arguments, the
# arguments of the layer, those of fit, and the epochs of each call of fit.
TRAINING: dict[str, dict[str, Any]] = {
    "l1": {"layer": {"kernel_regularizer": ("L1", {"l1": 0.05})}},
    "l2": {"layer": {"kernel_regularizer": ("L2", {"l2": 0.05})}},
    "l1 and l2": {
        "layer": {"kernel_regularizer": ("L1L2", {"l1": 0.02, "l2": 0.03}), "bias_regularizer": ("L2", {"l2": 0.1})}
    },
    "by name": {"layer": {"kernel_regularizer": "l2"}},
    "class_weight": {"fit": {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}}},
    "momentum": {"optimizer": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}), "fits": (2, 3)},
    "adam": {"optimizer": ("Adam", {"learning_rate": 0.05}), "fits": (2, 1, 2)},
    "rmsprop": {"optimizer": ("RMSprop", {"learning_rate": 0.05}), "fits": (2, 3)},
    "schedule": {"schedule": {"initial_learning_rate": 0.2, "decay_steps": 2, "decay_rate": 0.5}, "fits": (2, 3)},
}


def numbers(*shape: int) -> np.ndarray:
    """Return numbers (float32) from -1 to 1 that depend on the shape only."""
    steps = np.arange(np.prod(shape), dtype=np.float64)
    return np.sin(1 + steps * steps % 97 + len(shape)).reshape(shape).astype(np.float32)


def callback_cases(count: int = 120) -> list[dict[str, Any]]:
    """Return callbacks with arguments, and the values of a metric after each of 14 epochs that they get to see."""
    rng, cases = np.random.default_rng(3), []
    for number in range(count):
        monitor, mode = str(rng.choice(["val_loss", "val_accuracy"])), str(rng.choice(["auto", "min", "max"]))
        more: dict[str, Any] = {"patience": int(rng.integers(1, 4)), "min_delta": float(rng.choice([0.0, 0.15]))}
        if number % 2:
            kind = "ReduceLROnPlateau"
            more |= {"factor": 0.5, "cooldown": int(rng.integers(0, 4)), "min_lr": float(rng.choice([0.0, 0.2]))}
        else:
            kind, baseline = "EarlyStopping", rng.choice([np.nan, 0.3, 0.6])
            more |= {"start_from_epoch": int(rng.integers(0, 4)), "restore_best_weights": bool(rng.integers(2))}
            more |= {} if np.isnan(baseline) else {"baseline": float(baseline)}
        values = rng.choice([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 14).tolist()
        arguments = {"monitor": monitor, "mode": mode, "verbose": int(rng.integers(2)), **more}
        cases.append({"kind": kind, "arguments": arguments, "values": values})
    return cases


def callback_figures(keras: Any) -> list[list[float]]:  # pragma: no cover
    """Return the rate of each epoch that Keras's callbacks let a model train, of 1 at first."""
    figures = []
    for case in callback_cases():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1.0), "mse", metrics=["accuracy"])
        model.test_on_batch(np.zeros((1, 1)), np.zeros((1, 1)))  # so that its metrics are there
        callback = getattr(keras.callbacks, case["kind"])(**case["arguments"])
        callback.set_model(model)
        callback.on_train_begin()
        rates: list[float] = []
        model.stop_training = False
        for epoch, value in enumerate(case["values"]):
            if model.stop_training:
                break
            rates.append(float(model.optimizer.learning_rate))
            callback.on_epoch_end(epoch, {case["arguments"]["monitor"]: value})
        figures.append(rounded(rates))
    return figures


def training_data() -> tuple[np.ndarray, np.ndarray]:
    """Return 12 records of 4 numbers and their classes, 0 to 2."""
    return numbers(12, 4), np.arange(12) * 5 % 7 % 3


def main() -> None:  # pragma: no cover  (Keras is not installed where tests run)
    """Write the figures of this environment's Keras."""
    import keras

    layers = {}
    for name, (kind, arguments, shape) in LAYERS.items():
        *wrapper, kind = kind.split()
        layer = getattr(keras.layers, kind)(**arguments)
        layer = keras.layers.Bidirectional(layer) if wrapper else layer
        model = keras.Sequential([keras.Input(shape), layer])
        weights = [numbers(*weight.shape) for weight in model.get_weights()]
        if kind == "GRU":
            weights[2][1] = 0  # the second bias, which is added to h·U; dsinga's GRU, as SINGA's, has the first only
        model.set_weights(weights)
        layers[name] = rounded(model.predict(numbers(3, *shape), verbose=0))
    training = {}
    x, y = training_data()
    for name, case in TRAINING.items():
        settings = dict(case.get("layer", {}))
        for argument, value in settings.items():
            if isinstance(value, tuple):
                settings[argument] = getattr(keras.regularizers, value[0])(**value[1])
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax", **settings)])
        model.set_weights([numbers(4, 3), numbers(3)])
        kind, arguments = case.get("optimizer", ("SGD", {"learning_rate": 0.1}))
        if "schedule" in case:
            arguments = {"learning_rate": keras.optimizers.schedules.ExponentialDecay(**case["schedule"])}
        model.compile(getattr(keras.optimizers, kind)(**arguments), "sparse_categorical_crossentropy")
        losses: list[float] = []
        for epochs in case.get("fits", (3,)):
            fitted = model.fit(x, y, batch_size=12, epochs=epochs, verbose=0, **case.get("fit", {}))
            losses += fitted.history["loss"]
        training[name] = {"weights": [rounded(weight) for weight in model.get_weights()], "loss": rounded(losses)}
    figures = {
        **{"keras": keras.__version__, "backend": keras.backend.backend()},
        **{"layers": layers, "training": training, "callbacks": callback_figures(keras)},
    }
    FILE.write_text(json.dumps(figures, indent=None, separators=(", ", ": ")).replace('"layers"', '\n"layers"') + "\n")


def rounded(values: Any) -> Any:
    """Return numbers as lists, with seven digits."""
    return np.vectorize(lambda value: float(f"{value:.7g}"))(np.asarray(values, np.float64)).tolist()


if __name__ == "__main__":  # pragma: no cover
    main()
