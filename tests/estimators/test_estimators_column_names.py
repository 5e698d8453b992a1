"""Columns and classes go by their names for frames of every library, by every way into a net: in order, or refused."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import dsinga
from dsinga import nn
from dsinga.base.arrays import NamedParams
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import in_order, order_of
from dsinga.estimators import Classifier, Regressor, load
from tests.support.refusals import refused

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype("f4") * [3, 1, 1]
Y = (X[:, 0] > 2 * X[:, 1]).astype(int)
CLASSES = ["low", "top"]
WORDS = pd.Series(pd.Categorical.from_codes(Y, CLASSES))
OTHER_WORDS = WORDS.cat.reorder_categories(CLASSES[::-1])
FRAME = pd.DataFrame(X, columns=list("abc"))


def lazy(frame: Any) -> Any:
    return dd.from_pandas(frame, npartitions=2)


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "dask": lazy,
    "xarray": lambda frame: xr.DataArray(frame.to_numpy(), {"feature": [*frame]}, ("row", "feature")),
}
PERMUTED = FRAME[["c", "a", "b"]]
# Frames that may be refused, and what is said: of each kind of frame, by scikit-learn's words, and by a resumed run.
GIVEN: list[tuple[pd.DataFrame, str]] = [
    (PERMUTED, "same order as they were in fit|was fitted to|other columns, or these in another order"),
    (
        FRAME.assign(d=1.0)[["d", "c", "a", "b"]],
        "has the column 'd'|unseen at fit time:\n- d|4 features, but|of 4 |shape .4,.",
    ),
    (FRAME[["a", "b"]], "have no c; they have a, b|no column 'c'|now missing:\n- c|2 features, but|of 2 |shape .2,."),
    (FRAME.rename(columns={"b": "z"}), "have no b; they|no column 'b'|now missing:\n- b|was fitted to|other columns"),
]
PAIRS = [("polars", "polars")]
MORE_PAIRS = [(kind, kind) for kind in ("pandas", "arrow", "dask")] + [("pandas", "xarray"), ("xarray", "polars")]
QUIET = {"progress": False}


def model() -> nn.Model:
    made = nn.Sequential([nn.Input(3), nn.Dense(2, name="out")])
    made.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    return made


def fitted(kind: str) -> nn.Model:
    made = model()
    made.fit(KINDS[kind](FRAME), WORDS, epochs=2, batch_size=20, **QUIET)
    return made


def begun_by_a_batch(kind: str) -> nn.Model:
    made = model()
    made.train_on_batch(KINDS[kind](FRAME), Y)
    return made


def labels_for(records: Any, words: Any = OTHER_WORDS) -> Any:
    return lazy(words) if isinstance(records, dd.DataFrame) else words


def second_fit(kind: str, records: Any, _folder: Path) -> Any:
    made = fitted(kind)
    made.fit(records, OTHER_WORDS, epochs=1, batch_size=20, **QUIET)
    return made.params["out_weight"]


def validation(kind: str, records: Any, _folder: Path) -> Any:
    made = model()
    history = made.fit(KINDS[kind](FRAME), WORDS, batch_size=20, validation_data=(records, OTHER_WORDS), **QUIET)
    return history.phase("val")[-1]["loss"]


def batches(kind: str, records: Any, _folder: Path) -> Any:
    results = []
    for made, labels in ((fitted(kind), OTHER_WORDS), (begun_by_a_batch(kind), Y)):
        losses = made.train_on_batch(records, Y), made.test_on_batch(records, Y), made.evaluate(records, labels)["loss"]
        results += [*losses, *made.predict(records).ravel()]
    return results


def saved(kind: str, records: Any, folder: Path) -> Any:
    fitted(kind).save(folder / "model")
    made = nn.load_model(folder / "model")
    scores = made.predict(records)
    made.fit(records, OTHER_WORDS, batch_size=20, **QUIET)
    return [*scores.ravel(), made.evaluate(FRAME, WORDS)["loss"]]


def params_of_a_model(kind: str, records: Any, _folder: Path) -> Any:
    other = model()
    other.params = fitted(kind).params
    return other.predict(records)


def resumed(kind: str, records: Any, folder: Path) -> Any:
    made = model()
    made.fit(KINDS[kind](FRAME), Y, epochs=2, batch_size=20, workspace=folder, **QUIET)
    made = model()
    made.fit(records, Y, epochs=3, batch_size=20, workspace=folder, resume=True, **QUIET)
    return made.params["out_weight"]


def trained(kind: str, folder: Path) -> tuple[dsinga.Job, dsinga.Result]:
    job = model().job(batch_size=20, epochs=2)
    return job, dsinga.train(job, data=(KINDS[kind](FRAME), WORDS), workspace=folder, **QUIET)


def job_of_a_model(kind: str, records: Any, _folder: Path) -> Any:
    made = fitted(kind)
    job = made.job(records, OTHER_WORDS, test_data=(records, OTHER_WORDS), batch_size=20)
    losses = {dsinga.evaluate(job, made.params, data=data)["loss"] for data in (None, {"test": (records, OTHER_WORDS)})}
    assert len(losses) == 1
    return losses.pop()


def job_validated(kind: str, records: Any, _folder: Path) -> Any:
    data = {"val": (records, OTHER_WORDS), "train": (KINDS[kind](FRAME), WORDS)}
    return dsinga.train(model().job(batch_size=20, epochs=1), data=data, **QUIET).history.phase("val")[-1]["loss"]


def job_evaluated(kind: str, records: Any, folder: Path) -> Any:
    """By the result, by its params, and by the checkpoint: as a folder and as a file."""
    job, result = trained(kind, folder)
    step = folder / "checkpoint" / "step4"
    params = [result, result.params, step, step / "params.safetensors"]
    losses = {dsinga.evaluate(job, of_run, data=(records, OTHER_WORDS))["loss"] for of_run in params}
    assert len(losses) == 1
    return losses.pop()


def job_predicted(kind: str, records: Any, folder: Path) -> Any:
    job, result = trained(kind, folder)
    return dsinga.predict(job, result.params, "out", data=records)


def job_begun(kind: str, records: Any, folder: Path) -> Any:
    job, result = trained(kind, folder)
    return dsinga.train(job, data=(records, OTHER_WORDS), params=result.params, **QUIET).params["out_weight"]


def job_resumed(kind: str, records: Any, folder: Path) -> Any:
    job, _ = trained(kind, folder)
    data = (records, WORDS)
    return dsinga.train(job, data=data, epochs=3, workspace=folder, resume=True, **QUIET).params["out_weight"]


def estimator(kind: str, **options: Any) -> Classifier:
    records = KINDS[kind](FRAME)
    return Classifier(epochs=2, random_state=0, **options).fit(records, labels_for(records, WORDS))


def estimator_predicted(kind: str, records: Any, folder: Path) -> Any:
    made = estimator(kind)
    made.save(folder)
    for each in (made, load(folder)):
        assert each.score(records, labels_for(records)) == made.score(X, WORDS)
    return np.asarray(made.predict_proba(records))


def estimator_validated(kind: str, records: Any, _folder: Path) -> Any:
    given = KINDS[kind](FRAME)
    made = Classifier(epochs=1, random_state=0)
    made.fit(given, labels_for(given, WORDS), validation_data=(records, labels_for(records)))
    return [row[name] for row in made.history_ for name in row if "loss" in name]


def estimator_partial(kind: str, records: Any, _folder: Path) -> Any:
    return estimator(kind).partial_fit(records, labels_for(records)).predict_proba(X)


FACES = [
    second_fit, validation, batches, saved, params_of_a_model, resumed, job_of_a_model, job_validated, job_evaluated,
    job_predicted, job_begun, job_resumed, estimator_predicted, estimator_validated, estimator_partial,
]  # fmt: skip
REFUSES_ORDER = {resumed, job_resumed, estimator_predicted, estimator_validated, estimator_partial}


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names:UserWarning")  # of other libraries
@pytest.mark.parametrize(("kind", "given"), [*PAIRS, *(pytest.param(*p, marks=pytest.mark.ci) for p in MORE_PAIRS)])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_columns_go_by_their_names(face: Any, kind: str, given: str, tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())
    expected = face(kind, KINDS[given](FRAME), next(folders))
    for number, (records, words) in enumerate(GIVEN):
        try:
            found, refusal = face(kind, KINDS[given](records), next(folders)), ""
        except ValueError as error:
            refusal = str(error)
        if refusal:
            assert re.search(words, refusal)
            assert records is not PERMUTED or face in REFUSES_ORDER
        else:
            assert number < 2
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("words", [OTHER_WORDS, OTHER_WORDS.astype(str), lazy(OTHER_WORDS), Y])
@pytest.mark.parametrize("frame", [PERMUTED, lazy(PERMUTED)])
def test_labels_of_any_form_go_by_the_names_of_their_classes(frame: Any, words: Any, tmp_path: Path) -> None:
    made = fitted("pandas")
    made.save(tmp_path)
    for used in (made, nn.load_model(tmp_path)):
        np.testing.assert_allclose(used.evaluate(frame, words), made.evaluate(FRAME, Y), rtol=1e-6)


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    made = fitted("pandas")
    made.save(tmp_path)
    for used in (made, nn.load_model(tmp_path)):
        with pytest.raises(UserError, match="'topp'.*among the classes"):
            used.evaluate(FRAME, WORDS.cat.rename_categories({"top": "topp"}))
        opened = dsinga.data.open_records((FRAME, WORDS.astype(str)), classes=CLASSES[::-1])
        with pytest.raises(UserError, match="for the classes top, low, those of training low, top"):
            used.evaluate(opened)

    def fit(lat: list[int], resume: bool) -> None:
        fields = xr.DataArray(RNG.normal(size=(8, 2, 3)), {"lat": lat, "lon": [1, 2, 3]}, ("time", "lat", "lon"))
        made = nn.Sequential([nn.Input((2, 3)), nn.Flatten(), nn.Dense(2)])
        made.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
        made.fit(fields, np.arange(8) % 2, epochs=1 + resume, workspace=tmp_path, resume=resume, **QUIET)

    fit([10, 20], False)
    fit([30, 40], True)  # another region
    refused(lambda: fit([20, 10], True), "other columns, or these in", "another order", error=dsinga.UserError)
    with pytest.raises(dsinga.UserError, match=r"names of records in the params are damaged \(a name is no text\)"):
        dsinga.evaluate(model().job(batch_size=20, epochs=1), NamedParams({}, {"input1": [3]}), data=(FRAME, Y))


def test_a_file_of_names_of_an_earlier_version_and_a_damaged_one(tmp_path: Path) -> None:
    made = fitted("pandas")
    made.save(tmp_path)
    (tmp_path / "names.json").write_text('{"data": {"classes": ["low", "top"], "columns": ["a", "b", "c"]}}')
    losses = nn.load_model(tmp_path).evaluate(PERMUTED, OTHER_WORDS), made.evaluate(FRAME, WORDS)
    np.testing.assert_allclose(*losses, rtol=1e-6)
    for text in ("{", '{"data": 3}', '{"data": {"clases": []}}', '{"data": {"classes": [1]}}'):
        (tmp_path / "names.json").write_text(text)
        refused(lambda: nn.load_model(tmp_path), "names.json is damaged", error=dsinga.UserError)


def test_targets_go_by_their_names_too() -> None:
    def of_net(frame: pd.DataFrame, targets: Any, begin: str) -> nn.Model:
        made = nn.Sequential([nn.Input(3), nn.Dense(2)])
        made.compile(nn.SGD(0.01), "mse")
        made.fit(frame, targets, **QUIET) if begin == "fit" else made.train_on_batch(frame, targets)
        return made

    targets = pd.DataFrame({"u": X[:, 0], "v": X[:, 1] * 5})
    turned = targets[["v", "u"]]
    for begin in ("fit", "train_on_batch"):
        made, plain = of_net(FRAME, targets, begin), of_net(X, targets.to_numpy(), begin)
        for name in ("train_on_batch", "test_on_batch", "evaluate"):
            losses = getattr(made, name)(PERMUTED, turned), getattr(plain, name)(X, targets.to_numpy())
            np.testing.assert_allclose(*losses, rtol=1e-6, err_msg=name)
    of_array = Regressor(epochs=2, random_state=0).fit(X, targets.to_numpy())
    estimator = Regressor(epochs=2, random_state=0).fit(X, pl.from_pandas(targets))
    assert estimator.score(X, pl.from_pandas(turned)) == of_array.score(X, targets.to_numpy())


def test_labels_that_are_many_or_stand_twice() -> None:
    many = [f"gene{number}" for number in range(1500)]
    array = xr.DataArray(np.arange(3000.0).reshape(2, -1), {"gene": many}, ("cell", "gene"))
    order = order_of(array)
    assert in_order(array[:, ::-1], order).equals(array)
    refused(lambda: in_order(array.assign_coords(gene=["gene1", *many[1:]]), order), "have 'gene1' of 'gene' twice")
    refused(lambda: order_of(pa.table([[1], [2]], names=["a", "a"])), "several columns named 'a'")


def test_params_of_a_table_need_its_definition_to_read_a_frame(tmp_path: Path) -> None:
    job = model().job(batch_size=20, epochs=1)
    result = dsinga.train(job, data=dsinga.table(FRAME, Y), workspace=tmp_path, **QUIET)
    expected = dsinga.evaluate(result.job, result, data=(PERMUTED, Y))
    encoded = dsinga.table(PERMUTED, Y, columns=result.job.neuralnet.layer[0].store_conf.table)
    for params in (result, result.params, tmp_path):
        assert dsinga.evaluate(job, params, data=encoded) == expected
        with pytest.raises(dsinga.UserError, match="was trained on a table, but the job has no definition of one"):
            dsinga.evaluate(job, params, data=(FRAME, Y))
