"""Texts from Keras's guides and examples; see tests/core/nn/test_nn_further_habits.py."""

# The add-on that a habit needs, here or in tests/core/nn/test_nn_habits.py; others need none.
FUNCTIONS = "loss function|scalar loss|loss class|layer with params|layer of layers|lambda|lambda of the library"
ADDONS = {"augmentation": "augmentation", "text": "text", **dict.fromkeys(FUNCTIONS.split("|"), "functions")}

HABITS = {
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
    "recurrent dropout": """
layers.LSTM(6, dropout=0.1, recurrent_dropout=0.5)""",
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
    "zoom and contrast": """
i = keras.Input((8, 8, 1))
h = layers.RandomContrast(0.2)(layers.RandomZoom(0.1)(i))
model = keras.Model(i, layers.Dense(3)(layers.Flatten()(h)))
model.compile("adam", "mse")
model.fit(images, target, verbose=0)""",
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
    "clipnorm and clipvalue": """
model = net()
for clipped in (keras.optimizers.Adam(clipnorm=1.0), keras.optimizers.SGD(1e-2, momentum=0.9, clipvalue=0.5)):
    model.compile(clipped, "mse")
    model.fit(x, target, verbose=0)""",
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
    "states of an LSTM": """
layers.LSTM(6, return_state=True)""",
    "list of layers": """
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, name="first"), layers.Dense(3)])
for layer in model.layers: print(layer.name, layer.trainable)
assert model.layers[0].name == "first" and model.get_layer(index=1) is model.layers[1]""",
}
