"""The examples of docstrings, each executed in a fresh folder; what users call most has one."""

import doctest
import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import dsinga
from dsinga import estimators, extensions, monitor, nn

OWNERS = {
    "dsinga": dsinga, "nn": nn, "nn.Sequential": nn.Sequential, "data": dsinga.data, "extensions": extensions,
    "estimators": estimators, "monitor": monitor,
}  # fmt: skip
WITHOUT = {"nn": {"backend", "callbacks", "config", "layers", "models", "saving", "utils"}}  # nn by other names
MUST = """
nn.Sequential nn.Model nn.Input nn.Dense nn.Conv2D nn.LSTM nn.Embedding nn.Dropout nn.BatchNormalization
nn.Normalization nn.MaxPooling2D nn.MultiHeadAttention nn.Adam nn.SGD nn.CosineDecay nn.Cluster nn.Sequential.compile
nn.Sequential.fit nn.Sequential.predict nn.Sequential.evaluate nn.Sequential.summary nn.Sequential.save
nn.Sequential.predict_lazily dsinga.train dsinga.evaluate dsinga.predict dsinga.loads dsinga.windows dsinga.table
dsinga.find_learning_rate dsinga.search nn.load_model estimators.Classifier estimators.Regressor
extensions.EarlyStopping monitor.read_metrics
data.open_records
""".split()


def examples() -> dict[str, Any]:
    """Return what has examples, by name, each once."""
    found: dict[int, tuple[str, Any]] = {}
    for owner, module in OWNERS.items():
        for name in sorted({*dir(module)} - WITHOUT.get(owner, set())):
            value = None if name.startswith("_") else getattr(module, name, None)
            if callable(value) and ">>>" in (inspect.getdoc(value) or ""):
                found.setdefault(id(inspect.unwrap(value)), (f"{owner}.{name}", value))
        if isinstance(module, type):
            found.setdefault(id(module), (owner, module))
    return dict(found.values())


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(EXAMPLES[name]) or ""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    printed: list[str] = []
    failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=printed.append).failed
    assert not failed, "".join(printed)


def test_what_users_call_most_has_an_example() -> None:
    root = {"dsinga": dsinga, **OWNERS}
    without = [
        name for name in MUST
        if ">>>" not in (inspect.getdoc(attrgetter(name.partition(".")[2])(root[name.partition(".")[0]])) or "")
    ]  # fmt: skip
    assert not without
    assert len(EXAMPLES) >= 40
