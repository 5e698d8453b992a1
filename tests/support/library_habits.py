"""Texts from tutorials of PyTorch, Lightning and scikit-learn; see tests/core/nn/test_nn_further_habits.py."""

HABITS = {
    "tensors": """
net().fit(torch.tensor(x), torch.tensor(target), verbose=0)
net().predict(torch.tensor(x), verbose=0)""",
    "TensorDataset": """
from torch.utils.data import TensorDataset
net().fit(TensorDataset(torch.tensor(x), torch.tensor(target)), batch_size=16, verbose=0)""",
    "random_split": """
from torch.utils.data import DataLoader, TensorDataset, random_split
train, val = random_split(TensorDataset(torch.tensor(x), torch.tensor(target)), [48, 16])
loaders = DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=16)
net().fit(loaders[0], validation_data=loaders[1], epochs=2, verbose=0)""",
    "CrossEntropyLoss of torch": """
net(torch.nn.CrossEntropyLoss()).fit(x, y, verbose=0)""",
    "MSELoss of torch": """
net(torch.nn.MSELoss()).fit(x, target, verbose=0)""",
    "BCEWithLogitsLoss of torch": """
net(torch.nn.BCEWithLogitsLoss()).fit(x, (target > 0).astype('float32'), verbose=0)""",
    "functional cross_entropy": """
net(torch.nn.functional.cross_entropy).fit(x, y, verbose=0)""",
    "nn.CrossEntropyLoss": """
net(keras.CrossEntropyLoss()).fit(x, y, verbose=0)""",
    "accumulate_grad_batches": """
net().fit(x, target, accumulate_grad_batches=4, verbose=0)""",
    "mcc": """
model = probabilities()
model.compile("adam", CLASSES, metrics=["mcc"])
model.fit(x, y, verbose=0)
assert -1 <= model.evaluate(x, y, verbose=0)["mcc"] <= 1""",
    "from_torch": """
from dsinga.convert import from_torch
module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
model = from_torch(module)
assert np.allclose(model.predict(x), module(torch.tensor(x)).detach().numpy(), atol=1e-5)""",
    "scaler and classifier": """
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from dsinga.estimators import Classifier
pipe = make_pipeline(StandardScaler(), Classifier(epochs=2, random_state=42)).fit(x, y)
assert 0 <= pipe.score(x, y) <= 1 and pipe.predict_proba(x).shape == (64, 3)""",
    "grid search": """
from sklearn.model_selection import GridSearchCV
from dsinga.estimators import Regressor
grid = GridSearchCV(Regressor(epochs=2), {"hidden": [(8,), (4, 4)], "learning_rate": [0.01]}, cv=2)
grid.fit(x, target[:, 0])
assert grid.best_params_ and grid.best_estimator_.get_params()""",
    "cross_val_score": """
from sklearn.model_selection import cross_val_score
from dsinga.estimators import Classifier
assert len(cross_val_score(Classifier(epochs=2), x, y, cv=3, scoring="accuracy")) == 3""",
    "hidden_layer_sizes": """
from dsinga.estimators import Classifier
Classifier(hidden_layer_sizes=(8,))""",
    "module of an estimator": """
from dsinga.estimators import Classifier
Classifier(net=torch.nn.Linear(6, 3)).fit(x, y)""",
    "sparse counts": """
from sklearn.feature_extraction.text import CountVectorizer
from dsinga.estimators import Classifier
texts = ["a cat sat", "the dog ran", "a dog sat", "the cat ran"] * 4
words = CountVectorizer().fit_transform(texts)
Classifier(epochs=2).fit(words, [0, 1, 1, 0] * 4).predict(words)""",
    "one-hot pipeline": """
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from dsinga.estimators import Classifier
frame = pd.DataFrame({"age": x[:, 0], "town": np.where(x[:, 1] > 0, "A", "B")})
columns = make_column_transformer((OneHotEncoder(), ["town"]), (StandardScaler(), ["age"]))
make_pipeline(columns, Classifier(epochs=2)).fit(frame, y).predict(frame)""",
    "frame and names": """
import pandas as pd
from dsinga.estimators import Classifier
frame = pd.DataFrame(x, columns=list("abcdef"))
model = Classifier(epochs=2).fit(frame, pd.Series(np.array(["u", "v", "w"])[y]))
assert list(model.classes_) == ["u", "v", "w"] and set(model.predict(frame)) <= {"u", "v", "w"}""",
    "partial_fit": """
from dsinga.estimators import Classifier
model = Classifier()
model.partial_fit(x, y, classes=[0, 1, 2])
model.partial_fit(x, y)""",
    "clone of an estimator": """
from sklearn.base import clone
from dsinga.estimators import Classifier
model = clone(Classifier(epochs=2).set_params(hidden=(4,)))
model.fit(x, y)""",
    "nullable frame": """
import pandas as pd
from dsinga.estimators import Classifier
frame = pd.DataFrame(x, columns=list("abcdef")).convert_dtypes()
Classifier(epochs=2).fit(frame, pd.Series(y, dtype="Int64")).predict(frame)""",
    "dask frame": """
import pandas as pd, dask.dataframe as dd
from dsinga.estimators import Classifier
from distributed import Client
frame = pd.DataFrame(x, columns=list("abcdef")).astype("Float64")
frame["c"] = frame["c"].astype("double[pyarrow]")
labels = pd.Series(y, dtype="Int64")
with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
    X, Y = dd.from_pandas(frame, npartitions=2), dd.from_pandas(labels, npartitions=2)
    Classifier(epochs=2).fit(X, Y).predict(X).compute()""",
    "a missing target with weights": """
holes = target.copy()
holes[3, 1] = np.nan
model = net()
model.fit(x, holes, sample_weight=(~np.isnan(holes)).astype("float32"), verbose=0)
assert np.isfinite(model.predict(x)).all()""",
    "a masked loss": """
holes = target.copy()
holes[3, 1] = np.nan
model = net(loss=keras.MeanSquaredError(masked=True))
model.fit(x, holes, verbose=0)
assert np.isfinite(model.predict(x)).all()""",
    "train_test_split": """
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
x_train, x_test, y_train, y_test = train_test_split(x, target, test_size=0.25, random_state=0)
model = net()
model.fit(x_train, y_train, validation_data=(x_test, y_test), epochs=2, verbose=0)
assert r2_score(y_test, model.predict(x_test, verbose=0)) < 1""",
}
