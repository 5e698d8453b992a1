"""Dates in time zones: one clock, learnt in fit, by every way into a table; never two clocks in one column."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier
from tests.support.refusals import refused

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
dd = pytest.importorskip("dask.dataframe")

WHEN = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(np.random.default_rng(0).integers(0, 8760, 200), "h"))
LATE = (WHEN.dt.hour > 12).astype(int).to_numpy()
UTC = WHEN.dt.tz_localize("UTC")
CLOCKS = {
    "naive": WHEN, "utc": UTC, "berlin": UTC.dt.tz_convert("Europe/Berlin"), "tokyo": UTC.dt.tz_convert("Asia/Tokyo"),
}  # fmt: skip
REFUSED = "column 'when' of the table has dates (of the time zone|without a time zone).* in the records of training"


def frame_of(clock: str) -> Any:
    return pd.DataFrame({"when": CLOCKS[clock], "kind": np.where(np.arange(200) % 2, "a", "b")})


def as_objects(frame: Any) -> Any:
    return frame.assign(when=pd.Series([date.to_pydatetime() for date in frame.when], dtype=object))


KINDS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda frame: frame,
    "objects": as_objects,
    "categories": lambda frame: frame.assign(when=frame.when.astype("category")),
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "dask": lambda frame: dd.from_pandas(frame, npartitions=2),
}


def encoded(fitted: Any, given: Any, _folder: Path, **options: Any) -> Any:
    definition = dsinga.table(fitted, **options).definition
    return dsinga.table(given, columns=definition).read(np.arange(200))[0]


def as_categories(fitted: Any, given: Any, folder: Path) -> Any:
    return encoded(fitted, given, folder, categories=["when"])


def model_of(table: Any) -> nn.Model:
    made = nn.Sequential([nn.Input(table.shape), nn.Dense(2)])
    made.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    return made


def predicted(fitted: Any, given: Any, _folder: Path) -> Any:
    """In validation, in evaluate and in predict."""
    table = dsinga.table(fitted, LATE)
    made = model_of(table)
    history = made.fit(table, batch_size=50, validation_data=(given, LATE), progress=False)
    return [history.phase("val")[-1]["loss"], made.evaluate((given, LATE))["loss"], *made.predict(given).ravel()]


def resumed(fitted: Any, given: Any, folder: Path) -> Any:
    for epochs, data in ((1, fitted), (2, given)):
        table = dsinga.table(data, LATE)
        made = model_of(table)
        made.fit(table, epochs=epochs, batch_size=50, workspace=folder, resume=epochs > 1, progress=False)
    return made.predict(fitted)


def estimated(fitted: Any, given: Any, _folder: Path) -> Any:
    def late(data: Any) -> Any:
        return dd.from_pandas(pd.Series(LATE), npartitions=2) if isinstance(data, dd.DataFrame) else LATE

    made = Classifier(epochs=1, random_state=0)
    made.fit(fitted, late(fitted), validation_data=(given, late(given)))
    made.partial_fit(given, late(given))
    return np.asarray(made.predict_proba(given))


@pytest.mark.parametrize(
    ("fitted", "given"), [("naive", "utc"), ("berlin", "naive"), ("utc", "berlin"), ("berlin", "tokyo")]
)
@pytest.mark.parametrize(
    "face", [encoded, as_categories, predicted, resumed, estimated], ids=lambda face: face.__name__
)
@pytest.mark.parametrize(
    "kind", ["pandas", *(pytest.param(kind, marks=pytest.mark.ci) for kind in KINDS if kind != "pandas")]
)
def test_dates_are_read_by_the_clock_of_training(kind: str, face: Any, fitted: str, given: str, tmp_path: Path) -> None:
    first, other = KINDS[kind](frame_of(fitted)), KINDS[kind](frame_of(given))
    if face is resumed or "naive" in (fitted, given):
        refused(lambda: face(first, other, tmp_path), "other columns of a table" if face is resumed else REFUSED)
    else:
        np.testing.assert_allclose(face(first, other, tmp_path / "a"), face(first, first, tmp_path / "b"), rtol=1e-5)


@pytest.mark.parametrize("clocks", [("naive", "utc"), ("utc", "naive"), ("utc", "berlin")])
def test_files_partitions_and_objects_of_two_clocks_are_refused(tmp_path: Path, clocks: tuple[str, str]) -> None:
    from dask import delayed

    frames = [frame_of(clock) for clock in clocks]
    for number, frame in enumerate(frames):
        frame.to_parquet(tmp_path / f"{number}.parquet", index=False)
    refused(lambda: dsinga.table(tmp_path), r"1.parquet has dates .* in column 'when', but .*0.parquet has dates")
    lazy = dd.from_delayed([delayed(frame) for frame in frames], meta=frames[0][:0], verify_meta=False)
    refused(lambda: dsinga.table(lazy), "column 'when' of the table has dates .* in one part and dates")
    if "naive" in clocks:
        both = pd.concat([as_objects(frame) for frame in frames], ignore_index=True)
        for mixed in (both, both.assign(when=both.when.astype("category"))):
            with pytest.raises(UserError, match="'when'.*a time zone"):
                dsinga.table(mixed)


def test_a_definition_of_an_earlier_version_reads_dates_by_their_own_clock() -> None:
    definition = dsinga.table(frame_of("berlin")).definition
    earlier = definition.replace(column=[column.replace(zone=None) for column in definition.column])
    for clock in CLOCKS:
        dsinga.table(frame_of(clock), columns=earlier)
    assert "time zone Europe/Berlin" in dsinga.table(frame_of("berlin")).facts()["column when"]


def test_a_zone_that_is_not_known_is_one_sentence() -> None:
    table = pa.table({"when": pa.array([datetime.datetime(2024, 1, 1)] * 9, pa.timestamp("us", "No/Where"))})
    refused(lambda: dsinga.table(table), "'when' of the table has the time zone 'No/Where', which is not known")
