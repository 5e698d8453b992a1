"""Texts from Keras's guides and examples; see tests/core/nn/test_nn_further_habits.py."""

# The add-on that a habit needs, here or in tests/core/nn/test_nn_habits.py; others need none.
ADDONS = {
    **dict.fromkeys(("augmentation", "flips", "translation"), "augmentation"),
    **dict.fromkeys(
        ("loss function", "scalar loss", "loss class", "layer with params", "layer of layers"), "functions"
    ),
    **dict.fromkeys(("lambda", "lambda of the library", "transformer block"), "functions"),
    "text": "text",
}

HABITS = {
    "one line an epoch": """
net().fit(x, target, epochs=2, verbose=2)""",
    "records in their order": """
net().fit(x, target, epochs=2, batch_size=16, shuffle=False, verbose=0)""",
    "verbose evaluate": """
model = probabilities()
model.fit(x, y, validation_data=(x, y), verbose=2)
score = model.evaluate(x, y, verbose=2)
assert len(score) == 2 and model.predict(x, batch_size=8, verbose=1).shape == (64, 3)""",
    "inputs without names": """
a, b = keras.Input((6,)), keras.Input((6,))
model = keras.Model([a, b], layers.Dense(3)(layers.concatenate([a, b])))
model.compile("adam", "mse")
model.fit([x, x], target, verbose=0)
assert model.predict([x, x], verbose=0).shape == (64, 3)""",
    "add": """
i = keras.Input((6,))
h = layers.Dense(6, activation="relu")(i)
model = keras.Model(i, layers.Dense(3)(layers.add([h, i])))
model.compile("adam", "mse")
model.fit(x, target, verbose=0)""",
    "functions of several features": """
i = keras.Input((6,))
a, b = layers.Dense(4)(i), layers.Dense(4)(i)
joined = [f([a, b]) for f in (layers.subtract, layers.multiply, layers.average, layers.maximum, layers.minimum)]
model = keras.Model(i, layers.concatenate(joined, axis=-1))
assert model.predict(x, verbose=0).shape == (64, 20)""",
    "to_categorical": """
hot = keras.utils.to_categorical(y, num_classes=3)
assert hot.shape == (64, 3) and hot.sum() == 64
model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])
model.compile(loss="categorical_crossentropy", optimizer="sgd", metrics=["accuracy"])
model.fit(x, hot, verbose=0)""",
    "layer.weights": """
layer = layers.Dense(4)
model = keras.Sequential([keras.Input((6,)), layer])
model.predict(x, verbose=0)
assert len(layer.weights) == 2 and {tuple(w.shape) for w in layer.weights} <= {(6, 4), (4, 6), (4,)}""",
    "model.weights": """
model = net()
assert len(model.weights) == 4 and len(model.trainable_weights) == 4 and model.non_trainable_weights == []
for w in model.weights: print(w.name, w.shape)""",
    "trainable weights": """
layer = layers.BatchNormalization()
model = keras.Sequential([keras.Input((6,)), layer])
model.predict(x, verbose=0)
assert (len(layer.weights), len(layer.trainable_weights), len(layer.non_trainable_weights)) == (4, 2, 2)""",
    "layer of a submodel": """
base = keras.Sequential([keras.Input((6,)), layers.Dense(8, name="hidden"), layers.Dense(4)], name="base")
model = keras.Sequential([keras.Input((6,)), base, layers.Dense(3)])
model.compile("adam", "mse")
model.fit(x, target, verbose=0)
assert model.get_layer("base").get_layer("hidden").name == "hidden"
assert keras.Model(base.input, base.get_layer("hidden").output).predict(x, verbose=0).shape == (64, 8)""",
    "clone": """
model = net()
copy = keras.models.clone_model(model)
copy.set_weights(model.get_weights())
copy.compile("adam", "mse")
copy.fit(x, target, verbose=0)
assert not np.allclose(copy.predict(x, verbose=0), model.predict(x, verbose=0))""",
    "masking": """
steps = np.zeros((64, 5, 4), "float32")
steps[:, :3] = rng.normal(size=(64, 3, 4))
model = keras.Sequential([keras.Input((5, 4)), layers.Masking(mask_value=0.0), layers.LSTM(6), layers.Dense(3)])
model.compile("adam", "mse")
model.fit(steps, target, verbose=0)
long = model.predict(steps, verbose=0)
cut = keras.Sequential([keras.Input((3, 4)), layers.LSTM(6), layers.Dense(3)])
cut.set_weights(model.get_weights())
assert np.allclose(long, cut.predict(steps[:, :3], verbose=0), atol=1e-5)""",
    "dropout of an LSTM": """
model = keras.Sequential([keras.Input((5,)), layers.Embedding(20, 4), layers.LSTM(6, dropout=0.2), layers.Dense(3)])
model.compile("adam", "mse")
model.fit(codes, target, verbose=0)""",
    "dropout of a GRU": """
model = keras.Sequential([keras.Input((5, 4)), layers.Bidirectional(layers.GRU(6, dropout=0.1)), layers.Dense(3)])
model.compile("rmsprop", "mae")
model.fit(rng.normal(size=(64, 5, 4)).astype("float32"), target, verbose=0)""",
    "recurrent dropout": """
layers.LSTM(6, dropout=0.1, recurrent_dropout=0.5)""",
    "normalization": """
normalizer = layers.Normalization(axis=-1)
normalizer.adapt(x)
model = keras.Sequential([keras.Input((6,)), normalizer, layers.Dense(3)])
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.1), loss="mean_absolute_error")
model.fit(x, target, validation_split=0.2, verbose=0)
part = keras.Sequential([keras.Input((6,)), normalizer])
assert np.allclose(part.predict(x, verbose=0).std(0), 1, atol=1e-3)""",
    "normalization of a part": """
i = keras.Input((6,))
normalizer = layers.Normalization()
normalizer.adapt(x[:, :2])
model = keras.Model(i, layers.Dense(3)(layers.concatenate([normalizer(i[:, :2]), i[:, 2:]])))
model.compile("adam", "mse")
model.fit(x, target, verbose=0)""",
    "warmup target": """
rate = keras.optimizers.schedules.CosineDecay(
    initial_learning_rate=0.0, decay_steps=100, warmup_target=1e-2, warmup_steps=10, alpha=0.1)
model = net()
model.compile(keras.optimizers.AdamW(rate), "mse")
model.fit(x, target, epochs=6, verbose=0)""",
    "causal convolution": """
model = keras.Sequential([keras.Input((8, 4)),
    *[layers.Conv1D(4, 2, padding="causal", dilation_rate=rate, activation="relu") for rate in (1, 2, 4)],
    layers.Conv1D(2, 1)])
model.compile("adam", "mse")
series = rng.normal(size=(64, 8, 4)).astype("float32")
changed = series.copy()
changed[:, 5:] = 9
assert np.array_equal(model.predict(series, verbose=0)[:, :5], model.predict(changed, verbose=0)[:, :5])""",
    "l2": """
model = keras.Sequential([keras.Input((6,)),
    layers.Dense(8, kernel_regularizer=keras.regularizers.l2(0.001), activation="relu"),
    layers.Dense(3, kernel_regularizer=keras.regularizers.l1_l2(l1=1e-5, l2=1e-4))])
model.compile("adam", "mse")
model.fit(x, target, verbose=0)""",
    "augmentation": """
augment = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)])
i = keras.Input((8, 8, 3))
h = layers.Conv2D(4, 3, activation="relu")(layers.Rescaling(1.0 / 255)(augment(i)))
model = keras.Model(i, layers.Dense(3)(layers.GlobalAveragePooling2D()(h)))
model.compile("adam", "mse")
model.fit(rng.integers(0, 255, (32, 8, 8, 3)).astype("float32"), target[:32], verbose=0)""",
    "flips": """
i = keras.Input((8, 8, 1))
h = layers.RandomFlip("horizontal_and_vertical")(i)
model = keras.Model(i, layers.Dense(3)(layers.Flatten()(h)))
model.compile("adam", "mse")
model.fit(images, target, verbose=0)""",
    "translation": """
i = keras.Input((8, 8, 1))
h = layers.RandomTranslation(height_factor=0.1, width_factor=0.1)(layers.RandomFlip("horizontal")(i))
model = keras.Model(i, layers.Dense(3)(layers.Flatten()(h)))
model.compile("adam", "mse")
model.fit(images, target, verbose=0)
assert np.array_equal(model.predict(images, verbose=0), model.predict(images, verbose=0))""",
    "zoom and contrast": """
i = keras.Input((8, 8, 1))
h = layers.RandomContrast(0.2)(layers.RandomZoom(0.1)(i))
model = keras.Model(i, layers.Dense(3)(layers.Flatten()(h)))
model.compile("adam", "mse")
model.fit(images, target, verbose=0)""",
    "images channels last": """
model = keras.Sequential([
    keras.Input((28, 28, 1)),
    layers.Conv2D(4, kernel_size=(3, 3), activation="relu"), layers.MaxPooling2D(pool_size=(2, 2)),
    layers.Conv2D(4, kernel_size=(3, 3), activation="relu"), layers.MaxPooling2D(pool_size=(2, 2)),
    layers.Flatten(), layers.Dropout(0.5), layers.Dense(10, activation="softmax")])
model.compile(loss=CLASSES, optimizer="adam", metrics=["accuracy"])
model.fit(rng.random((32, 28, 28, 1)).astype("float32"), rng.integers(0, 10, 32), batch_size=16, verbose=0)""",
    "residual block": """
i = keras.Input((8, 8, 3), name="img")
h = layers.Conv2D(4, 3, padding="same", activation="relu")(i)
block = layers.Conv2D(4, 3, padding="same")(h)
block = layers.ReLU()(layers.BatchNormalization()(block))
out = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.add([block, h])))
model = keras.Model(i, out, name="toy_resnet")
model.summary()
model.compile(optimizer=keras.optimizers.RMSprop(1e-3), loss="mse")
model.fit(np.repeat(images, 3, -1), target, verbose=0)""",
    "input_shape of a layer": """
model = keras.Sequential()
model.add(layers.Dense(8, input_shape=(6,), activation="relu"))
model.add(layers.Dense(3))
model.compile("adam", "mse")
model.fit(x, target, verbose=0)""",
    "input_dim of a layer": """
model = keras.Sequential()
model.add(layers.Dense(8, input_dim=6, activation="relu"))
model.add(layers.Dense(1, activation="sigmoid"))
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x, y > 1, epochs=2, batch_size=10, verbose=0)""",
    "flatten images": """
model = keras.Sequential([layers.Flatten(input_shape=(8, 8)), layers.Dense(16, activation="relu"), layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(images[..., 0], y, verbose=0)
probability = keras.Sequential([model, layers.Softmax()])
assert np.allclose(probability.predict(images[..., 0], verbose=0).sum(1), 1, atol=1e-5)""",
    "add and pop": """
model = keras.Sequential()
model.add(keras.Input((6,)))
model.add(layers.Dense(8))
model.add(layers.Dense(3))
model.pop()
assert len(model.layers) == 1 and model.predict(x, verbose=0).shape == (64, 8)""",
    "clipnorm": """
model = net()
model.compile(keras.optimizers.Adam(learning_rate=1e-3, clipnorm=1.0), "mse")
model.fit(x, target, verbose=0)""",
    "clipvalue": """
model = net()
model.compile(keras.optimizers.SGD(learning_rate=1e-2, momentum=0.9, clipvalue=0.5), "mse")
model.fit(x, target, verbose=0)""",
    "seed": """
keras.utils.set_random_seed(812)
net().fit(x, target, verbose=0)""",
    "clear session": """
keras.backend.clear_session()
net().fit(x, target, verbose=0)""",
    "loss and metric objects": """
model = net()
model.compile(optimizer=keras.optimizers.RMSprop(learning_rate=1e-3), loss=keras.losses.MeanSquaredError(),
    metrics=[keras.metrics.MeanAbsoluteError(), keras.metrics.RootMeanSquaredError(name="rmse")])
model.fit(x, target, verbose=0)""",
    "label smoothing": """
model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])
model.compile("adam", keras.losses.CategoricalCrossentropy(label_smoothing=0.1))
model.fit(x, np.eye(3)[y], verbose=0)""",
    "text classification": """
i = keras.Input((None,), dtype="int64")
h = layers.Dropout(0.5)(layers.Embedding(20, 8)(i))
h = layers.Conv1D(8, 3, padding="valid", activation="relu", strides=1)(h)
h = layers.Dense(8, activation="relu")(layers.GlobalMaxPooling1D()(h))
model = keras.Model(i, layers.Dense(1, activation="sigmoid", name="predictions")(h))
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(codes, y > 1, verbose=0)""",
    "two LSTMs": """
i = keras.Input(shape=(None,), dtype="int32")
h = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(layers.Embedding(20, 8)(i))
h = layers.Bidirectional(layers.LSTM(6))(h)
model = keras.Model(i, layers.Dense(1, activation="sigmoid")(h))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(codes, y > 1, batch_size=32, epochs=1, validation_data=(codes, y > 1), verbose=0)""",
    "transformer block": """
class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1, self.dropout2 = layers.Dropout(rate), layers.Dropout(rate)
    def call(self, inputs):
        attn_output = self.dropout1(self.att(inputs, inputs))
        out1 = self.layernorm1(inputs + attn_output)
        return self.layernorm2(out1 + self.dropout2(self.ffn(out1)))
i = keras.Input(shape=(5,))
h = layers.GlobalAveragePooling1D()(TransformerBlock(8, 2, 8)(layers.Embedding(20, 8)(i)))
model = keras.Model(i, layers.Dense(3, activation="softmax")(h))
model.compile("adam", CLASSES, metrics=["accuracy"])
model.fit(codes, y, verbose=0)""",
    "convolutional autoencoder": """
i = layers.Input(shape=(8, 8, 1))
h = layers.MaxPooling2D((2, 2), padding="same")(layers.Conv2D(4, (3, 3), activation="relu", padding="same")(i))
h = layers.Conv2DTranspose(4, (3, 3), strides=2, activation="relu", padding="same")(h)
model = keras.Model(i, layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(h))
model.compile(optimizer="adam", loss="binary_crossentropy")
model.fit(x=abs(images) / 9, y=abs(images) / 9, batch_size=128, shuffle=True, validation_split=0.2, verbose=0)""",
    "U-Net": """
i = keras.Input((8, 8, 3))
a = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(i)))
b = layers.SeparableConv2D(8, 3, padding="same")(layers.MaxPooling2D(3, strides=2, padding="same")(a))
c = layers.concatenate([layers.UpSampling2D(2)(b), a])
model = keras.Model(i, layers.Conv2D(2, 3, activation="softmax", padding="same")(c))
model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=CLASSES)
model.fit(np.repeat(images, 3, -1), rng.integers(0, 2, (64, 8, 8, 1)), verbose=0)""",
    "initializers": """
h = layers.Dense(8, kernel_initializer=keras.initializers.HeNormal(), bias_initializer="zeros")
last = layers.Dense(3, kernel_initializer=keras.initializers.RandomNormal(mean=0.0, stddev=0.01))
model = keras.Sequential([keras.Input((6,)), h, last])
model.predict(x, verbose=0)""",
    "activations": """
names = ["elu", "selu", "softplus", "silu", "gelu", "tanh"]
model = keras.Sequential([keras.Input((6,)), *[layers.Dense(4, activation=name) for name in names]])
model.predict(x, verbose=0)""",
    "activation functions": """
model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation=keras.activations.relu),
    layers.Activation(keras.activations.softmax)])
model.predict(x, verbose=0)""",
    "activation layers": """
model = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.LeakyReLU(negative_slope=0.2),
    layers.Dense(8), layers.ELU(), layers.PReLU(), layers.Dropout(0.1), layers.Dense(3)])
model.compile("adam", "mse")
model.fit(x, target, verbose=0)""",
    "loss functions": """
model = net(loss=keras.losses.mean_squared_error)
model.fit(x, target, verbose=0)
net(loss=keras.losses.Huber()).fit(x, target, verbose=0)""",
    "last of predictions": """
model = probabilities()
h = model.fit(x, y, epochs=2, validation_split=0.25, verbose=0)
assert len(h.history["val_accuracy"]) == 2
assert (model.predict(x, verbose=0).argmax(axis=-1) < 3).all()""",
    "weights in validation": """
model = net()
model.fit(x, target, sample_weight=np.ones(64), validation_data=(x, target, np.ones(64)), verbose=0)
results = model.evaluate(x, target, batch_size=16, return_dict=True, verbose=0)
assert results["loss"] > 0""",
    "states of an LSTM": """
layers.LSTM(6, return_state=True)""",
    "frozen base": """
base = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.GlobalAveragePooling2D()], name="base")
base.trainable = False
model = keras.Sequential([keras.Input((8, 8, 3)), base, layers.Dropout(0.2), layers.Dense(3)])
model.compile("adam", "mse")
model.fit(np.repeat(images, 3, -1), target, verbose=0)
assert len(model.trainable_weights) == 2""",
    "saved and cloned": """
model = net()
model.fit(x, target, verbose=0)
model.save("model.keras")
again = keras.models.load_model("model.keras")
again.compile(optimizer=keras.optimizers.Adam(1e-4), loss="mse")
again.fit(x, target, epochs=2, verbose=0)""",
    "list of layers": """
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, name="first"), layers.Dense(3)])
for layer in model.layers: print(layer.name, layer.trainable)
assert model.layers[0].name == "first" and model.get_layer(index=1) is model.layers[1]""",
    "count of a layer's params": """
model = net()
assert model.layers[0].count_params() == 56""",
}
