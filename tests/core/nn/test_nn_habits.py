"""Sixty habits of people who know Keras, as the text of Keras's own programs, run here and, where installed, by Keras.

A program begins with ``from dsinga import nn as keras`` in place of ``import keras``; its own functions are PyTorch's.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.keras_habits import ADDONS
from tests.support.programs import python

COMMON = """
import numpy as np, torch
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 6)).astype("float32"), rng.integers(0, 3, 64)
target, images = rng.normal(size=(64, 3)).astype("float32"), rng.normal(size=(64, 8, 8, 1)).astype("float32")
codes = rng.integers(0, 20, (64, 5))
layers = keras.layers
def net(loss="mse", units=3, **more):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(units)])
    model.compile(optimizer="adam", loss=loss, **more)
    return model
CLASSES = "sparse_categorical_crossentropy"
def fitted(*stack):
    model = keras.Sequential([keras.Input((6,)), *stack])
    model.compile("adam", "mse")
    model.fit(x, target, verbose=0)
    return model
def fitted_to(optimizer):
    model = net()
    model.compile(optimizer, "mse")
    model.fit(x, target, verbose=0)
def probabilities():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])
    model.compile("adam", CLASSES, metrics=["accuracy"])
    return model
"""

HABITS = {
    "classifier": "probabilities().fit(x, y, epochs=2, batch_size=16, verbose=0)",
    "validation split": "h = net().fit(x, target, validation_split=0.2, verbose=0)\nassert h.history['val_loss']",
    "loss function": "net(lambda y, p: torch.mean((y - p) ** 2, -1)).fit(x, target, verbose=0)",
    "scalar loss": "net(lambda y, p: torch.mean(torch.abs(y - p))).fit(x, target, verbose=0)",
    "loss class": """
class Cubic(keras.losses.Loss):
    def call(self, y_true, y_pred): return torch.mean(torch.abs(y_true - y_pred) ** 3, -1)
net(Cubic()).fit(x, target, verbose=0)""",
    "loss of logits": "net(keras.losses.SparseCategoricalCrossentropy(from_logits=True)).fit(x, y, verbose=0)",
    "metric function": """
def gap(y_true, y_pred): return abs(y_true - y_pred).max()
net(metrics=[gap]).fit(x, target, verbose=0)""",
    "metric class": """
model = probabilities()
model.compile("adam", CLASSES, metrics=[keras.metrics.SparseCategoricalAccuracy()])
model.fit(x, y, verbose=0)""",
    "layer with params": """
class Linear(layers.Layer):
    def __init__(self, units, **more):
        super().__init__(**more)
        self.units = units
    def build(self, input_shape):
        self.w = self.add_weight(shape=(input_shape[-1], self.units), initializer="glorot_uniform", name="w")
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", name="b")
    def call(self, inputs): return torch.matmul(inputs, self.w) + self.b
fitted(Linear(4), layers.Dense(3))""",
    "layer of layers": """
class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(6, activation="relu"), layers.Dense(6)
    def call(self, inputs, training=None): return inputs + self.second(self.first(inputs))
fitted(Block(), layers.Dense(3))""",
    "lambda": "fitted(layers.Lambda(lambda t: t ** 2), layers.Dense(3))",
    "lambda of the library": """
tanh = layers.Lambda(lambda t: torch.tanh(t))
fitted(layers.Dense(4), tanh, layers.Dense(3))""",
    "operators": """
i = keras.Input((6,))
e, a = layers.Dense(4)(i), layers.Dense(4)(i)
fitted(keras.Model(i, layers.Dense(3)((e + a) * 0.5 - e / 2)))""",
    "indexing": """
i = keras.Input((6,))
model = keras.Model(i, layers.Dense(3)(i[:, 1:4]))
model.predict(x, verbose=0)""",
    "product of matrices": "i = keras.Input((4, 5))\nassert (i @ layers.Permute((2, 1))(i)).shape == (None, 4, 4)",
    "subtract layer": "i = keras.Input((6,))\nlayers.Subtract()([layers.Dense(3)(i), layers.Dense(3)(i)])",
    "model in a model": """
inner = keras.Sequential([keras.Input((6,)), layers.Dense(4)])
fitted(inner, layers.Dense(3))""",
    "autoencoder": """
i = keras.Input((6,))
code = layers.Dense(2)(i)
encoder, whole = keras.Model(i, code), keras.Model(i, layers.Dense(6)(code))
whole.compile("adam", "mse")
whole.fit(x, x, verbose=0)
assert encoder.predict(x, verbose=0).shape == (64, 2)""",
    "siamese": """
twin = keras.Sequential([keras.Input((6,)), layers.Dense(4)])
a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
model = keras.Model([a, b], layers.Dense(3)(twin(a) - twin(b)))
model.compile("adam", "mse")
model.fit([x, x], target, verbose=0)""",
    "model of arrays": "assert tuple(net()(x[:4]).shape) == (4, 3)",
    "features of a layer": """
model = net()
part = keras.Model(model.inputs, model.layers[0].output)
assert part.predict(x, verbose=0).shape == (64, 8)""",
    "get_layer output": """
i = keras.Input((6,))
model = keras.Model(i, layers.Dense(3)(layers.Dense(4, name="hidden")(i)))
keras.Model(model.input, model.get_layer("hidden").output).predict(x, verbose=0)""",
    "subclassed model": """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(4, activation="relu"), layers.Dense(3)
    def call(self, inputs, training=None): return self.last(self.hidden(inputs))
model = Net()
model.compile("adam", "mse")
model.fit(x, target, verbose=0)""",
    "rate of a step": """
class Halved(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step): return 0.1 / (1.0 + step)
fitted_to(keras.optimizers.SGD(Halved()))""",
    "rate of an epoch": """
rate = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.5)
net().fit(x, target, epochs=2, callbacks=[rate], verbose=0)""",
    "built-in schedule": """
fitted_to(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)))""",
    "generator": """
def batches():
    while True: yield x[:16], target[:16]
net().fit(batches(), steps_per_epoch=4, epochs=2, verbose=0)""",
    "PyDataset": """
class Batches(getattr(getattr(keras, "utils", None), "PyDataset", object)):
    def __len__(self): return 4
    def __getitem__(self, i): return x[16 * i : 16 * i + 16], target[16 * i : 16 * i + 16]
    def on_epoch_end(self): pass
net().fit(Batches(), epochs=2, verbose=0)""",
    "DataLoader": """
from torch.utils.data import DataLoader, TensorDataset
net().fit(DataLoader(TensorDataset(torch.tensor(x), torch.tensor(target)), batch_size=16), epochs=2, verbose=0)""",
    "validation data": "net().fit(x, target, validation_data=(x, target), verbose=0)",
    "train_on_batch": "assert net().train_on_batch(x, target) > 0",
    "test_on_batch": "assert net().test_on_batch(x, target) > 0",
    "predict_on_batch": "assert net().predict_on_batch(x).shape == (64, 3)",
    "callback class": """
seen = []
class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append((epoch, logs["loss"]))
        self.model.stop_training = epoch == 1
net().fit(x, target, epochs=5, callbacks=[Watch()], verbose=0)
assert len(seen) == 2""",
    "lambda callback": """
seen = []
call = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
net().fit(x, target, epochs=2, callbacks=[call], verbose=0)
assert seen == [0, 1]""",
    "early stopping": """
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
net().fit(x, target, epochs=3, validation_split=0.2, callbacks=[stop], verbose=0)""",
    "checkpoint": """
best = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True)
net().fit(x, target, epochs=2, validation_split=0.2, callbacks=[best], verbose=0)
keras.models.load_model("best.keras").predict(x, verbose=0)""",
    "backup": "net().fit(x, target, epochs=2, callbacks=[keras.callbacks.BackupAndRestore('backup')], verbose=0)",
    "history": """
h = net().fit(x, target, epochs=3, verbose=0)
assert h.epoch == [0, 1, 2] and len(h.history["loss"]) == 3""",
    "save and load": """
model = net()
model.save("net.keras")
loaded = keras.models.load_model("net.keras")
assert np.allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5)""",
    "weights file": """
model, other = net(), net()
model.save_weights("net.weights.h5")
other.load_weights("net.weights.h5")
assert np.allclose(model.predict(x, verbose=0), other.predict(x, verbose=0), atol=1e-5)""",
    "frozen layer": """
model = net()
model.layers[0].trainable = False
model.compile("adam", "mse")
model.fit(x, target, verbose=0)""",
    "regularizer": "fitted(layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.01)))",
    "class weights": "probabilities().fit(x, y, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0)",
    "evaluate": "loss, accuracy = probabilities().evaluate(x, y, verbose=0)\nassert loss > 0",
    "mask of an embedding": """
words = layers.Embedding(20, 4, mask_zero=True)
model = keras.Sequential([keras.Input((5,)), words, layers.LSTM(6), layers.Dense(3)])
model.predict(codes, verbose=0)""",
    "last step": """
last = layers.Dense(3, activation="softmax")
model = keras.Sequential([keras.Input((5,)), layers.Embedding(20, 4), layers.LSTM(6), last])
model.compile("adam", CLASSES)
model.fit(codes, y, verbose=0)""",
    "convolutions": """
model = keras.Sequential([
    keras.Input((8, 8, 1)), layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(),
    layers.Flatten(), layers.Dense(3)])
model.compile("adam", "mse")
model.fit(images, target, verbose=0)""",
    "any length": "keras.Input((None,))",
    "text": "layers.TextVectorization(max_tokens=10).adapt(['a b', 'b c'])",
    "count of params": "assert net().count_params() == 6 * 8 + 8 + 8 * 3 + 3",
    "validation generator": """
def batches():
    while True: yield x[:16], target[:16]
h = net().fit(batches(), steps_per_epoch=4, validation_data=batches(), validation_steps=2, verbose=0)
assert h.history['val_loss']""",
    "outputs by name": """
i = keras.Input((6,))
h = layers.Dense(8)(i)
model = keras.Model(i, [layers.Dense(3, name="a")(h), layers.Dense(3, activation="softmax", name="b")(h)])
weights = {"a": 1.0, "b": 0.5}
model.compile("adam", {"a": "mse", "b": CLASSES}, loss_weights=weights, metrics={"b": ["accuracy"]})
model.fit(x, {"b": y, "a": target}, verbose=0)
a, b = model.predict(x, verbose=0)
assert np.allclose(b.sum(1), 1, atol=1e-5)""",
    "metrics of one output": """
i = keras.Input((6,))
model = keras.Model(i, [layers.Dense(3)(i), layers.Dense(3, activation="softmax")(i)])
model.compile("adam", ["mse", CLASSES], metrics=[None, "accuracy"])
model.fit(x, [target, y], verbose=0)""",
    "inputs by name": """
a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
shared = layers.Dense(8, activation="relu")
model = keras.Model([a, b], layers.Dense(3)(layers.Concatenate()([shared(a), shared(b)])))
model.compile("adam", "mse")
model.fit({"a": x, "b": x}, target, verbose=0)
assert model.predict({"b": x, "a": x}, verbose=0).shape == (64, 3)""",
    "fine-tuning": """
base = net()
base.trainable = False
before = base.get_weights()
i = keras.Input((6,))
model = keras.Model(i, layers.Dense(3, activation="softmax")(base(i, training=False)))
model.compile(keras.optimizers.Adam(1e-3), CLASSES)
model.fit(x, y, verbose=0)
assert all(np.array_equal(a, b) for a, b in zip(before, base.get_weights()))
base.trainable = True
for layer in base.layers[:-1]: layer.trainable = False
model.compile(keras.optimizers.Adam(1e-3), CLASSES)
model.fit(x, y, verbose=0)
assert [np.array_equal(a, b) for a, b in zip(before, base.get_weights())] == [True, True, False, False]""",
    "weights of a layer": """
model = net()
model.predict(x, verbose=0)
weights = model.layers[0].get_weights()
model.layers[0].set_weights([2 * each for each in weights])
assert np.array_equal(model.get_weights()[0], 2 * weights[0])""",
    "swapped weights": """
a, b = net(), net()
b.set_weights(a.get_weights())
assert np.allclose(a.predict(x, verbose=0), b.predict(x, verbose=0), atol=1e-5)""",
    "steps": """
step = layers.TimeDistributed(layers.Dense(3))
both = layers.Bidirectional(layers.LSTM(4))
model = keras.Sequential([keras.Input((5,)), layers.Embedding(20, 4), step, both, layers.Dense(3)])
model.predict(codes, verbose=0)""",
    "decay and averages": """
fitted_to(keras.optimizers.AdamW(1e-3, weight_decay=4e-3, use_ema=True, ema_momentum=0.9))""",
}


def run(code: str) -> None:
    from dsinga import nn

    exec(COMMON + code, {"keras": nn, "__name__": "habit"})


@pytest.mark.parametrize("habit", [habit for habit in HABITS if habit not in ADDONS])
def test_a_habit_works_as_written(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run(HABITS[habit])


@pytest.mark.slow
def test_keras_runs_the_same_texts(tmp_path: Path):
    pytest.importorskip("torch")
    if not find_spec("keras"):  # whose import asks for a backend
        pytest.skip("needs Keras")
    # Its TextVectorization needs TensorFlow.
    runs = "".join(
        f"exec(COMMON + {code!r}, {{'keras': keras, '__name__': 'habit'}})\n"
        for name, code in HABITS.items()
        if name != "text"
    )
    program = f"import keras\nCOMMON = {COMMON!r}\n{runs}"
    python("-c", program, environment={"KERAS_BACKEND": "torch"}, cwd=tmp_path)
