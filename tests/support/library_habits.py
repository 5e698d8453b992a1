"""Texts from tutorials of PyTorch, Lightning and scikit-learn; see tests/core/nn/test_nn_further_habits.py."""

HABITS = {
    "tensors": """
net().fit(torch.tensor(x), torch.tensor(target), verbose=0)
net().predict(torch.tensor(x), verbose=0)""",
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
}
