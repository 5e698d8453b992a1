"""Estimators and nets for tables in ONNX Runtime: from the columns of any frame to labels, probabilities, numbers."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import is_classifier

import dsinga
from dsinga import models, nn
from dsinga.addons.onnx.export_graph import GraphWriter
from dsinga.addons.onnx.export_net import finished
from dsinga.addons.onnx.export_tables import add_inputs, calendar, writer_of
from dsinga.addons.onnx.written_files import write_onnx
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier, Regressor, Transformer, load
from tests.support.onnx_nets import session_of

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ROWS = 240
NUMBER, TEXT, TRUTH, DATE = "tensor(double)", "tensor(string)", "tensor(bool)", "tensor(int64)"


def made(seed: int = 0, new: bool = False) -> Any:
    """Return a frame with columns of each kind; ``new`` has other categories, numbers and dates than training."""
    random = np.random.default_rng(seed)
    seconds = random.integers(-(10**9), 2 * 10**9, ROWS)
    frame = pd.DataFrame(
        {
            "carrier": random.choice(["Alba", "Brisa", "Ciélo", "new" if new else "Alba"], ROWS),
            "distance": random.lognormal(7, 3 if new else 1, ROWS),
            "departs": np.datetime64("2000-02-29T23:59:59", "us") + seconds * np.timedelta64(1, "s"),
            "hub": random.random(ROWS) < 0.5,
            "seats": random.integers(0, 12 if new else 9, ROWS),
            "delay": pd.to_timedelta(random.integers(0, 99, ROWS), "min"),
        }
    )
    return frame


def gaps(frame: Any) -> Any:
    """Return a frame with gaps of each kind."""
    frame = frame.astype({"carrier": object, "seats": "Int64", "hub": "boolean"})
    for step, name in enumerate(frame, 3):
        frame.loc[::step, name] = pd.NA if name in ("seats", "hub") else None
    return frame


def to_dask(frame: Any) -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=2)


FRAMES: dict[str, tuple[Any, dict[str, str]]] = {  # a form of the made frame, and types of some of its inputs
    "columns of each kind": (lambda f: f, {"carrier": TEXT, "distance": NUMBER, "departs": DATE, "hub": TRUTH}),
    "gaps": (gaps, {"carrier": TEXT, "seats": NUMBER, "hub": NUMBER, "departs": DATE}),
    "categories": (lambda f: f.astype({"carrier": "category", "seats": "category"}), {"seats": TEXT}),
    "texts": (lambda f: f[["carrier"]].astype("string"), {"carrier": TEXT}),
    "dates": (lambda f: f[["departs"]], {"departs": DATE}),
    "zone": (lambda f: f.assign(departs=f.departs.dt.tz_localize("UTC").dt.tz_convert("+02:00")), {"departs": DATE}),
    "days": (lambda f: f.assign(departs=f.departs.dt.date), {"departs": DATE}),
    "numbers": (lambda f: f[["distance", "seats", "hub"]], {"hub": NUMBER, "seats": NUMBER}),
    "Polars": (lambda f: pytest.importorskip("polars").from_pandas(gaps(f)), {"carrier": TEXT, "delay": NUMBER}),
    "Arrow": (lambda f: pa.Table.from_pandas(f, preserve_index=False), {"hub": TRUTH, "delay": NUMBER}),
    "Dask": (lambda f: to_dask(f), {"carrier": TEXT, "departs": DATE}),
}


def fed(session: Any, frame: Any) -> dict[str, np.ndarray]:
    """Return what a server is given of a frame of pandas, by the types of the inputs."""
    feeds = {}
    for each in session.get_inputs():
        column = frame[each.name]
        if each.type == TEXT:
            array = column.astype(object).where(column.notna(), "").astype(str).to_numpy(object)
        elif each.type == DATE:
            dates = pd.to_datetime(column)
            array = (dates.dt.tz_localize(None) if dates.dt.tz else dates).to_numpy("datetime64[us]").astype(np.int64)
        elif each.type == TRUTH:
            array = column.to_numpy(bool)
        else:
            column = column / pd.Timedelta("1s") if column.dtype.kind == "m" else column
            array = column.astype("Float64").to_numpy(np.float64, na_value=np.nan)
        feeds[each.name] = array[:, None]
    return feeds


def as_pandas(frame: Any) -> Any:
    return frame.compute() if hasattr(frame, "compute") else frame.to_pandas() if hasattr(frame, "to_pandas") else frame


@pytest.mark.parametrize("form", FRAMES)
def test_a_frame_is_predicted_in_onnxruntime(form, tmp_path):
    make, types = FRAMES[form]
    frame, target = make(made()), np.where(made().distance > 1000, "late", "in time")
    classifier = Classifier(epochs=1, random_state=0).fit(
        frame, to_dask(pd.Series(target)) if form == "Dask" else target
    )
    assert classifier.export(tmp_path / "net.onnx", check=frame) < 1e-5
    session, later = session_of(tmp_path / "net.onnx"), make(made(1, new=True))
    inputs = {each.name: each.type for each in session.get_inputs()}
    assert inputs.items() >= types.items()
    label, probabilities = session.run(["label", "probabilities"], fed(session, as_pandas(later)))
    expected = np.asarray(classifier.predict_proba(later))
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(label, classifier.classes_[expected.argmax(axis=1)])


X = np.random.default_rng(0).normal(100, 3, (90, 4))
Y = X[:, 0] * 50 + X[:, 1]
FRAME = made().iloc[:90]
GREY = nn.Sequential([nn.Input((4,)), nn.Dense(3, "relu"), nn.Dense(2)])
GREY.compile("adam", nn.losses.SparseCategoricalCrossentropy(from_logits=True))
FITTED: dict[str, tuple[Any, Any, Any]] = {
    "numbers as classes": (Classifier(), X, np.arange(90) % 3 + 5),
    "truth": (Classifier(), X, Y > 5100),
    "labels": (Classifier(), X, (X[:, :3] > 100).astype(int)),
    "calibrated": (Classifier(calibrate=True), FRAME, np.where(Y > 5100, "a", "b")),
    "strong": (Classifier(preset="strong"), FRAME, np.where(Y > 5100, "a", "b")),
    "strong, of an array": (Regressor(preset="strong"), X, Y),
    "sparse": (Classifier(), sparse.csr_array(X), Y > 5100),
    "a net": (Classifier(GREY), X, Y > 5100),
    "targets": (Regressor(), FRAME, np.stack([Y, -Y], axis=1)),
    "quantile": (Regressor(loss="quantile"), X, Y),
    "lognormal": (Regressor(loss="lognormal"), FRAME, Y),
    "counts": (Regressor(loss="negative_binomial"), X, np.arange(90) % 7),
    "features": (Transformer(), X, None),
    "Boltzmann machine": (Transformer(method="rbm"), X, None),
}


@pytest.mark.parametrize("what", FITTED)
def test_an_estimator_is_exported_as_it_predicts_also_from_its_folder(what, tmp_path):
    estimator, x, y = FITTED[what]
    estimator.set_params(epochs=1, random_state=0).fit(x, y)
    estimator.save(tmp_path / "saved")
    for each in (estimator, load(tmp_path / "saved")):
        assert each.export(tmp_path / "net.onnx", check=x) < (1e-5 if is_classifier(each) else 1e-6 * Y.max())
    session = session_of(tmp_path / "net.onnx")
    names = [each.name for each in session.get_outputs()]
    assert names == (["label", "probabilities"] if isinstance(estimator, Classifier) else ["variable"])
    if x is X:
        (given,) = session.get_inputs()
        outputs = session.run(None, {"X": X.astype(np.float32 if "float" in given.type else np.float64)})
        predict = estimator.transform if isinstance(estimator, Transformer) else estimator.predict
        np.testing.assert_allclose(outputs[0].squeeze(), predict(X).squeeze(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scaling", ["quantile", "robust", "standard"])
@pytest.mark.parametrize("make", [models.tabm, models.realmlp])
def test_a_net_for_tables_takes_the_columns_of_a_frame(make, scaling, tmp_path):
    table = dsinga.table(gaps(made()).assign(late=np.arange(ROWS) % 2), label="late", scaling=scaling)
    numbers, flags, _, sizes = table.parts
    options = {"members": 3, "bins": table.bins(4)} if make is models.tabm else {}
    model = make(len(numbers), len(flags), sizes, outputs=2, width=8, **options)
    model.fit(table, epochs=1, progress=False)
    later = gaps(made(1, new=True))
    assert model.export(tmp_path / "net.onnx", check=later) < 1e-5
    session = session_of(tmp_path / "net.onnx")
    np.testing.assert_allclose(session.run(None, fed(session, later))[0], model.predict(later), atol=1e-5)


def test_parts_of_dates_of_ten_thousand_years(tmp_path):
    ends = np.array(["0001-01-01", "9999-12-31"], "datetime64[us]").astype(np.int64)
    dates = np.random.default_rng(0).integers(*ends, 20_000)
    dates[:3] = *ends, -1
    graph = GraphWriter({})
    inputs = add_inputs(graph, {"dates": onnx.TensorProto.INT64})
    parts = calendar(writer_of(graph, "dates"), "dates")
    del parts["missing"]
    graph.types |= dict.fromkeys(parts.values(), onnx.TensorProto.DOUBLE)
    write_onnx(*finished(graph, inputs, [(value, (1,)) for value in parts.values()]), tmp_path / "net.onnx")
    results = session_of(tmp_path / "net.onnx").run(None, {"dates": dates[:, None]})
    given = pa.array(dates, pa.timestamp("us"))
    names = {"monthday": "day", "yearday": "day_of_year", "weekday": "day_of_week"}
    for part, result in zip(parts, results, strict=True):
        expected = dates / 86_400_000_000 if part == "day" else getattr(pa.compute, names.get(part, part))(given)
        np.testing.assert_array_equal(result[:, 0], np.asarray(expected), part)


def test_what_onnx_does_not_have_is_refused(tmp_path):
    dates = np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")
    with pytest.raises(UserError, match=r"no classes such as .*y\.astype\(str\)"):
        Classifier(epochs=1).fit(X, dates[np.arange(90) % 2]).export(tmp_path / "net.onnx")
    frame = FRAME.rename(columns={"hub": "label", "seats": "fc1_weight"})
    with pytest.raises(UserError, match="column 'fc1_weight' is called as a param"):
        Classifier(epochs=1).fit(frame, Y > 5100).export(tmp_path / "net.onnx")
    Classifier(epochs=1).fit(frame[["label", "departs"]], Y > 5100).export(tmp_path / "net.onnx")
    assert [each.name for each in session_of(tmp_path / "net.onnx").get_outputs()] == ["label_2", "probabilities"]
