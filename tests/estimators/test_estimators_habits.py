"""Habits of people who know Keras 3, PEFT, XGBoost, skorch, scikit-learn and Lightning: they work, or a sentence helps.

The words to write that a sentence names, the second text of a habit, then work. ``tests/core/nn/test_nn_habits.py`` has
further ones of Keras, which Keras runs, too.
"""

from pathlib import Path

import pytest

from dsinga import nn
from dsinga.nn.model.training_state import FIRST_SEED
from tests.core.nn.test_nn_habits import COMMON
from tests.support.refusals import refused
from tests.support.registries import restored_registry

BEGIN = (
    COMMON
    + """
import dsinga
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from dsinga import estimators
from dsinga.estimators import Classifier, Regressor
yes = (x[:, 0] > 0).astype("float32")
codes = rng.integers(1, 20, (64, 5))
sentences = [row[: 1 + number % 5] for number, row in enumerate(codes)]
def answers(loss="binary_crossentropy", **more):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1, activation="sigmoid")])
    model.compile("adam", loss, **more)
    return model
def reader(*ends):
    i = keras.Input((None,))
    h = layers.LSTM(4)(layers.Embedding(20, 4, mask_zero=True)(i))
    model = keras.Model(i, [end(h) for end in ends])
    model.compile("adam", ["mse"] * len(ends))
    return model
class Rates(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2
def lstm():
    model = keras.Sequential([layers.LSTM(3)])
    model.compile("adam", "mse")
    return model
def fitted(**more): return Classifier(epochs=1, random_state=0, **more).fit(x, y)
def lora(**more):
    model = net()
    model.add_lora(layers=["dense"], **more)
    return model
def mean_cubes(y_true, y_pred): return torch.mean(torch.abs(y_true - y_pred) ** 3, -1)
def fit(model, *data, **more): return model.fit(*data, verbose=0, **more)
def collate(batch): return tuple(pad_sequence([torch.as_tensor(b[i]) for b in batch], batch_first=True) for i in (0, 1))
def penalised(penalty): return layers.Dense(3, kernel_regularizer=penalty)
def same(a, b): return all(np.allclose(*pair, atol=1e-6) for pair in zip(a.get_weights(), b.get_weights()))
"""
)

# Those that work as written.
HABITS = {
    "outputs of any length": "fit(reader(layers.Dense(3), layers.Dense(1)), codes, [target, yes])",
    "outputs of ragged lists": "fit(reader(layers.Dense(3), layers.Dense(1)), sentences, [target, yes])",
    "batch of any length": "reader(layers.Dense(3), layers.Dense(1)).train_on_batch(codes, [target, yes])",
    "accuracy of an own loss": """
model = answers(mean_cubes, metrics=["accuracy"])
fit(model, x, yes)
assert np.isclose(model.evaluate(x, yes)[1], ((model.predict(x)[:, 0] > 0.5) == yes).mean())""",
    "accuracy of one-hot labels": """
model = net(lambda t, p: -(t * torch.log_softmax(p, -1)).sum(-1), metrics=["accuracy"])
hot = np.eye(3, dtype="float32")[y]
fit(model, x, hot)
assert np.isclose(model.evaluate(x, hot)[1], (model.predict(x).argmax(1) == y).mean())""",
    "BinaryAccuracy": "fit(answers(mean_cubes, metrics=[keras.metrics.BinaryAccuracy()]), x, yes[:, None])",
    "a rate between fits": """
model = net()
fit(model, x, target)
weights, model.optimizer.learning_rate = model.get_weights(), 0
fit(model, x, target)
assert all(map(np.array_equal, weights, model.get_weights()))""",
    "a rate between batches": """
model = net()
model.train_on_batch(x, target)
weights, model.optimizer.learning_rate = model.get_weights(), np.float32(0)
model.train_on_batch(x, target)
assert all(map(np.array_equal, weights, model.get_weights()))""",
    "a rate in a callback": """
model, other = net(), net()
for each in (model, other): each.compile(keras.optimizers.SGD(0.1), "mse")
fit(model, x, target, epochs=3, callbacks=Rates(), shuffle=False)
halved = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / 2**epoch)
fit(other, x, target, epochs=3, callbacks=halved, shuffle=False)
assert same(model, other)
assert float(model.optimizer.learning_rate) == 0.0125""",
    "a padded DataLoader": """
data = [(torch.tensor(s), torch.tensor(t)) for s, t in zip(sentences, target)]
one, other = reader(layers.Dense(3)), reader(layers.Dense(3))
fit(one, DataLoader(data, batch_size=3, collate_fn=collate), epochs=2)
fit(other, sentences, target, epochs=2, batch_size=3, shuffle=False)
assert same(one, other)""",
    "padded labels": """
data = [(torch.tensor(s), torch.tensor(s % 3)) for s in sentences]
steps = [layers.Embedding(20, 4, mask_zero=True), layers.LSTM(4, return_sequences=True), layers.Dense(3)]
model = keras.Sequential([keras.Input((None,)), *steps])
model.compile("adam", CLASSES)
fit(model, DataLoader(data, batch_size=10, collate_fn=collate))""",
    "a generator of padded batches": """
fit(reader(layers.Dense(3)), ((codes[:16, :n], target[:16]) for n in (3, 5, 4)))""",
    "a short last batch": "fit(net(), DataLoader(list(zip(x, target)), batch_size=10))",
    "layers by module": "import dsinga.nn\nassert keras.layers is keras.models is dsinga.nn",
    "read_metrics of a workspace": """
fit(net(), x, target, workspace="run")
assert len(dsinga.monitor.read_metrics("run")) == 1""",
    "resume from a workspace": """
fit(net(), x, target, workspace="run", checkpoint_freq=1, epochs=2)
fit(net(), x, target, workspace="other", resume="run", epochs=3)""",
}

# Those that a sentence answers: the text, words of the sentence, and the text that they tell to write.
INSTEAD = {
    "assign": ("net().optimizer.learning_rate.assign(0.1)", "write model.optimizer.learning_rate = 0", ""),
    "lr": ("net().optimizer.lr = 0.1", "write model.optimizer.learning_rate", "net().optimizer.learning_rate = 0.1"),
    "set_value": ("keras.backend.set_value(1, 0.1)", "write model.optimizer.learning_rate = 0", ""),
    "rate of fit": ("net().fit(x, x, learning_rate=0.1)", "in nn.Adam", "keras.Adam(learning_rate=0.001)"),
    "eval_set of nn": ("net().fit(x, x, eval_set=[])", "give validation_data=", ""),
    "eval_set": ("fitted().fit(x, y, eval_set=[(x, y)])", "validation_d", "fitted().fit(x, y, validation_data=(x, y))"),
    "rounds": ("Classifier(early_stopping_rounds=5)", "n_iter_no_c", "fitted(early_stopping=True, n_iter_no_change=9)"),
    "rounds of fit": ("fitted().fit(x, y, early_stopping_rounds=5)", "early_stopping=True, .* in the constructor", ""),
    "verbose of fit": ("fitted().fit(x, y, verbose=False)", "leave it out", "fitted()"),
    "epochs of fit": ("Classifier().fit(x, y, epochs=5)", "the constructor takes it", "fitted()"),
    "importances": ("fitted().feature_importances_", "write sklearn.inspection.permutation_importance", """
import sklearn.inspection
sklearn.inspection.permutation_importance(fitted(), x, y, n_repeats=1).importances_mean"""),
    "trees": ("Classifier(n_estimators=100)", "leave it out", "fitted()"),
    "objective": ("Classifier(objective='binary:logistic')", "give net=", "Classifier(net=net(CLASSES)).fit(x, y)"),
    "scale_pos_weight": ("Classifier(scale_pos_weight=3)", "write class_weight", "fitted(class_weight='balanced')"),
    "lambda": ("Classifier(reg_lambda=1.0)", "it is weight_decay", "fitted(weight_decay=1.0)"),
    "verbosity": ("Classifier(verbosity=0)", "leave it out", "fitted()"),
    "nthread": ("Classifier(nthread=2)", "it is workers", "Classifier(workers=2)"),
    "evals_result": ("fitted().evals_result()", "it is history_", "fitted().history_"),
    "history of skorch": ("fitted().history", "it is history_", "fitted().history_"),
    "best iteration": ("fitted().best_iteration", "best_epoch_", "fitted().best_epoch_"),
    "module_": ("fitted().module_", "params_", "fitted().params_"),
    "save_model": ("fitted().save_model('m')", "write save", "fitted().save('m')\nestimators.load('m').predict(x)"),
    "load_model": ("Classifier().load_model('m')", "write dsinga.estimators.load", ""),
    "NeuralNetClassifier": ("estimators.NeuralNetClassifier", "write Classifier", "fitted()"),
    "from xgboost": ("from dsinga.estimators import XGBRegressor", r"write Regressor\(net=", "Regressor()"),
    "show_trainable": ("net().summary(show_trainable=True)", "layer.trainable", "[l.trainable for l in net().layers]"),
    "a metric class": ("class Gap(keras.metrics.Metric): pass", r"metrics=\[gap\]", """
def gap(labels, predictions): return abs(labels - predictions).max()
fit(net(metrics=[gap]), x, target)"""),
    "a metric by itself": ("keras.metrics.AUC().update_state(y, y)", "evaluate", "answers().evaluate(x, yes)"),
    "a loss by itself": ("keras.losses.BinaryCrossentropy()(y, x)", "evaluate", "answers().evaluate(x, yes)"),
    "a regularizer class": ("class Own(keras.regularizers.Regularizer): pass", "write nn.L1", "penalised(keras.L1())"),
    "a regularizer function": ("penalised(lambda w: 0 * w)(keras.Input(6))", "write nn.L1", ""),
    "unseen": ("fit(net(), x, target, callbacks=keras.callbacks.EarlyStopping('val_loss'))", "validation_data=", ""),
    "in_features": ("keras.Dense(in_features=4, out_features=2)", "leave it out", "keras.Dense(units=2)"),
    "Linear of two sizes": ("keras.Dense(4, 2)", "takes the size of its source", "keras.Dense(2)"),
    "out_channels": ("keras.Conv2D(out_channels=4)", "it is filters", "keras.Conv2D(filters=4, kernel_size=3)"),
    "num_embeddings": ("keras.Embedding(num_embeddings=4)", "it is inp", "keras.Embedding(input_dim=4, output_dim=2)"),
    "p": ("keras.Dropout(p=0.5)", "it is rate", "keras.Dropout(rate=0.5)"),
    "labels from 1": ("fit(net(CLASSES), x, y + 1)", "labels begin at 0: give y - 1", "fit(net(CLASSES), x, y)"),
    "one unit": ("fit(net(CLASSES, 1), x, y % 2)", 'write loss="binary_crossentropy"', "fit(answers(), x, y % 2)"),
    "onnx by save": ("net().save('net.onnx')", "write model.export", ""),
    "target_modules": ("lora(target_modules=['dense'])", "rank, alpha, layers", "fit(lora(rank=2), x, target)"),
    "r": ("lora(r=2)", "it has rank", ""),
    "lora_alpha": ("lora(rank=2, lora_alpha=4)", "it has rank, alpha", "lora(rank=2, alpha=4)"),
    "LoraConfig": ("from dsinga.nn import LoraConfig", "write model.add_lora", "lora(rank=8)"),
    "merge_and_unload": ("lora(rank=2).merge_and_unload()", "merge_lora()", "lora(rank=2).merge_lora()"),
    "save_pretrained": ("lora(rank=2).save_pretrained('a')", "save_lora", "lora(rank=2).save_lora('a')"),
    "trainable params": ("net().print_trainable_parameters()", "in model.trainable_weights", "net().trainable_weights"),
    "LightningModule": ("keras.LightningModule", "subclass of nn.Model", ""),
    "Trainer": ("from dsinga import Trainer", "has fit", ""),
    "numbers of several lengths": (
        "drawn = [(x[:n], x[0, :3]) for n in (1, 2)]\nfit(lstm(), DataLoader(drawn, 1, collate_fn=collate))",
        "pad to one length, as by torch.nn.functional.pad", "",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    with restored_registry():
        yield
    FIRST_SEED[0] = 0


def run(text: str) -> None:
    exec(BEGIN + text, {"keras": nn, "__name__": "habit"})


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_works_as_written(habit: str):
    run(HABITS[habit])


@pytest.mark.parametrize("habit", INSTEAD)
def test_a_habit_is_answered_by_what_to_write_which_works(habit: str):
    text, words, instead = INSTEAD[habit]
    refused(lambda: run(text), words)
    run(instead)
