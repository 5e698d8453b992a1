"""Columns go by their names for frames of every library, by every way into a net: put in order, or refused."""

from __future__ import annotations

import itertools
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
from dsinga.data.array_kinds import in_order, order_of
from dsinga.estimators import Classifier, Regressor

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype("f4") * [3, 1, 1]
Y = (X[:, 0] > 2 * X[:, 1]).astype(int)
FRAME = pd.DataFrame(X, columns=list("abc"))
KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "dask": lambda frame: dd.from_pandas(frame, npartitions=2),
    "xarray": lambda frame: xr.DataArray(frame.to_numpy(), {"feature": [*frame]}, ("row", "feature")),
}
PERMUTED = FRAME[["c", "a", "b"]]
WRONG = {"missing": FRAME[["a", "b"]], "renamed": FRAME.rename(columns={"b": "z"})}
EXTRA = FRAME.assign(d=1.0)[["d", "c", "a", "b"]]
PAIRS = [("polars", "polars"), ("xarray", "xarray")]
MORE_PAIRS = [(kind, kind) for kind in ("pandas", "arrow", "dask")] + [("pandas", "xarray"), ("xarray", "polars")]
QUIET = {"progress": False}


def model() -> nn.Model:
    made = nn.Sequential([nn.Input(3), nn.Dense(2, name="out")])
    made.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    return made


def fitted(kind: str) -> nn.Model:
    made = model()
    made.fit(KINDS[kind](FRAME), Y, epochs=2, batch_size=20, **QUIET)
    return made


def labels_for(records: Any) -> Any:
    return dd.from_pandas(pd.Series(Y), npartitions=2) if isinstance(records, dd.DataFrame) else Y


def second_fit(kind: str, records: Any, _folder: Path) -> Any:
    made = fitted(kind)
    made.fit(records, Y, epochs=1, batch_size=20, **QUIET)
    return made.params["out_weight"]


def validation(kind: str, records: Any, _folder: Path) -> Any:
    made = model()
    history = made.fit(KINDS[kind](FRAME), Y, batch_size=20, validation_data=(records, Y), **QUIET)
    return history.phase("val")[-1]["loss"]


def batches(kind: str, records: Any, _folder: Path) -> Any:
    return fitted(kind).train_on_batch(records, Y)


def saved(kind: str, records: Any, folder: Path) -> Any:
    fitted(kind).save(folder / "model")
    return nn.load_model(folder / "model").predict(records)


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
    return job, dsinga.train(job, data=(KINDS[kind](FRAME), Y), workspace=folder, **QUIET)


def job_validated(kind: str, records: Any, _folder: Path) -> Any:
    data = {"train": (KINDS[kind](FRAME), Y), "val": (records, Y)}
    return dsinga.train(model().job(batch_size=20, epochs=1), data=data, **QUIET).history.phase("val")[-1]["loss"]


def job_evaluated(kind: str, records: Any, folder: Path) -> Any:
    """By the result, by its params, and by the checkpoint: as a folder and as a file."""
    job, result = trained(kind, folder)
    step = folder / "checkpoint" / "step4"
    params = [result, result.params, step, step / "params.safetensors"]
    losses = {dsinga.evaluate(job, of_run, data=(records, Y))["loss"] for of_run in params}
    assert len(losses) == 1
    return losses.pop()


def job_predicted(kind: str, records: Any, folder: Path) -> Any:
    job, result = trained(kind, folder)
    return dsinga.predict(job, result.params, "out", data=records)


def job_begun(kind: str, records: Any, folder: Path) -> Any:
    job, result = trained(kind, folder)
    return dsinga.train(job, data=(records, Y), params=result.params, **QUIET).params["out_weight"]


def job_resumed(kind: str, records: Any, folder: Path) -> Any:
    job, _ = trained(kind, folder)
    data = (records, Y)
    return dsinga.train(job, data=data, epochs=3, workspace=folder, resume=True, **QUIET).params["out_weight"]


def estimator(kind: str, **options: Any) -> Classifier:
    records = KINDS[kind](FRAME)
    return Classifier(epochs=2, random_state=0, **options).fit(records, labels_for(records))


def estimator_predicted(kind: str, records: Any, _folder: Path) -> Any:
    made = estimator(kind)
    assert made.score(records, labels_for(records)) == made.score(X, Y)
    return np.asarray(made.predict_proba(records))


def estimator_validated(kind: str, records: Any, _folder: Path) -> Any:
    given = KINDS[kind](FRAME)
    made = Classifier(epochs=1, random_state=0)
    made.fit(given, labels_for(given), validation_data=(records, labels_for(records)))
    return [row[name] for row in made.history_ for name in row if "loss" in name]


def estimator_partial(kind: str, records: Any, _folder: Path) -> Any:
    return estimator(kind).partial_fit(records, labels_for(records)).predict_proba(X)


FACES = [
    second_fit, validation, batches, saved, params_of_a_model, resumed, job_validated, job_evaluated, job_predicted,
    job_begun, job_resumed, estimator_predicted, estimator_validated, estimator_partial,
]  # fmt: skip
REFUSES_ORDER = {resumed, job_resumed, estimator_predicted, estimator_validated, estimator_partial}


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names:UserWarning")  # of other libraries
@pytest.mark.parametrize(
    ("kind", "given"), [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.ci) for pair in MORE_PAIRS)]
)
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_columns_go_by_their_names(face: Any, kind: str, given: str, tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())
    expected = face(kind, KINDS[given](FRAME), next(folders))
    for records, may_be_refused in ((PERMUTED, face in REFUSES_ORDER), (EXTRA, True)):
        try:
            found = face(kind, KINDS[given](records), next(folders))
        except ValueError:
            assert may_be_refused
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    for records in WRONG.values():
        with pytest.raises(ValueError, match="column|no [bc]|feature|shape"):
            face(kind, KINDS[given](records), next(folders))


def test_labels_go_by_their_names_too() -> None:
    targets = pd.DataFrame({"u": X[:, 0], "v": X[:, 1] * 5})
    plain = Regressor(epochs=2, random_state=0).fit(X, targets.to_numpy())
    made = Regressor(epochs=2, random_state=0).fit(X, pl.from_pandas(targets))
    assert made.score(X, pl.from_pandas(targets[["v", "u"]])) == plain.score(X, targets.to_numpy())


def test_labels_that_are_many_or_stand_twice() -> None:
    many = [f"gene{number}" for number in range(1500)]
    array = xr.DataArray(np.arange(3000.0).reshape(2, -1), {"gene": many}, ("cell", "gene"))
    order = order_of(array)
    assert in_order(array[:, ::-1], order).equals(array)
    with pytest.raises(dsinga.UserError, match="have 'gene1' of 'gene' twice"):
        in_order(array.assign_coords(gene=["gene1", *many[1:]]), order)
    with pytest.raises(dsinga.UserError, match="several columns named 'a'"):
        order_of(pa.table([[1], [2]], names=["a", "a"]))


def test_a_checkpoint_of_fields_is_not_resumed_with_turned_points(tmp_path: Path) -> None:
    def fit(lat: list[int], resume: bool) -> None:
        fields = xr.DataArray(RNG.normal(size=(8, 2, 3)), {"lat": lat, "lon": [1, 2, 3]}, ("time", "lat", "lon"))
        made = nn.Sequential([nn.Input((2, 3)), nn.Flatten(), nn.Dense(2)])
        made.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
        made.fit(fields, np.arange(8) % 2, epochs=1 + resume, workspace=tmp_path, resume=resume, **QUIET)

    fit([10, 20], False)
    fit([30, 40], True)  # another region
    with pytest.raises(dsinga.UserError, match="other columns, or these in another order"):
        fit([20, 10], True)


def test_damaged_names_in_a_file_of_params_are_one_sentence() -> None:
    with pytest.raises(dsinga.UserError, match=r"names of records in the params are damaged \(a name is no text\)"):
        dsinga.evaluate(model().job(batch_size=20, epochs=1), NamedParams({}, {"input1": [3]}), data=(FRAME, Y))


def test_params_of_a_table_need_its_definition_to_read_a_frame(tmp_path: Path) -> None:
    job = model().job(batch_size=20, epochs=1)
    result = dsinga.train(job, data=dsinga.table(FRAME, Y), workspace=tmp_path, **QUIET)
    expected = dsinga.evaluate(result.job, result, data=(PERMUTED, Y))
    encoded = dsinga.table(PERMUTED, Y, columns=result.job.neuralnet.layer[0].store_conf.table)
    for params in (result, result.params, tmp_path):
        assert dsinga.evaluate(job, params, data=encoded) == expected
        with pytest.raises(dsinga.UserError, match="was trained on a table, but the job has no definition of one"):
            dsinga.evaluate(job, params, data=(FRAME, Y))
