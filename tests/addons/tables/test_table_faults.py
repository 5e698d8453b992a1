"""Bad input of tables: each is one sentence that names the column, before anything trains."""

import logging

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from tests.addons.tables.test_table_records import flights, in_arrow, in_dask, in_polars, pandas
from tests.support.refusals import refused

FRAME = flights()
TABLE = dsinga.table(FRAME, label="late")


@pytest.fixture(scope="module")
def model():
    net = nn.Sequential([nn.Input(TABLE.shape), nn.Dense(2)])
    net.compile("sgd", "sparse_categorical_crossentropy")
    net.fit(TABLE, epochs=1, progress=False)
    return net


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"late": "no"}, {}, "'late' has the label 'no' in all 600 records"),
        ({"late": [None] + ["no", "yes"] * 299 + ["no"]}, {}, "no label in record 0 of column 'late'"),
        ({"late": np.array([0, 2**63] * 300, np.uint64)}, {}, "column 'late' has a label that no int64 holds"),
        ({"distance": np.inf}, {}, "infinity in record 0, column 'distance'"),
        ({"stops": [[1]] * 600}, {}, "column 'stops' of the table has values of type list"),
        ({"stops": [1, "one"] * 300}, {}, "column 'stops' of the data frame has values of several kinds"),
        ({"stops": pandas.Series(["\ud800"] * 600, dtype=object)}, {}, "column 'stops' of .* surrogates not allowed"),
        ({}, {"label": "lat"}, "no column 'lat'; did you mean 'late'"),
        ({}, {"columns": ["stop"]}, "no column 'stop'; did you mean 'stops'"),
        ({}, {"categories": ["stop"]}, "no column 'stop'; did you mean 'stops'"),
        ({}, {"dates": {"leaves": ["hours"]}}, "dates has the part 'hours'; did you mean 'hour'"),
        ({}, {"dates": {"stops": ["hour"]}}, "dates names column 'stops', which has numbers"),
        ({}, {"dates": "hour"}, r"dates is 'hour'; give a list of names, such as \['hour'\]"),
        ({}, {"dates": ["hour", "hour"]}, "dates has 'hour' twice"),
        ({}, {"columns": "stops"}, "columns is 'stops'; give a list of names"),
        ({}, {"columns": ["stops", "stops"]}, "columns has 'stops' twice; leave one out"),
        ({}, {"columns": ["distance"], "categories": ["stops"]}, "names column 'stops', which columns lacks"),
        ({}, {"columns": TABLE.definition, "scaling": "robust"}, "columns is a definition, .* leave scaling out"),
        ({"distance": np.arange(600) * 1e37}, {}, "column 'distance' of the table has numbers as large as 5.99e.39"),
        ({}, {"categoris": ["stops"]}, "table has no argument 'categoris'; did you mean 'categories'"),
        ({}, {"scaling": "robus"}, "scaling is 'robus'; did you mean 'robust'"),
        ({}, {"y": np.zeros(600)}, "labels are given by y and by label"),
        ({}, {"y": "late", "label": None}, "y is 'late', the name of a column; give label='late'"),
        ({}, {"y": ["a"] * 600, "label": None}, "y has the label 'a' in all 600 records"),
        ({}, {"y": [None] + ["a"] * 599, "label": None}, "the label 'None' in record 0, which is not among"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused(changes, options, message):
    refused(lambda: dsinga.table(FRAME.assign(**changes), **{"label": "late", **options}), message)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME[:0], "the data frame has no records"),
        (FRAME.distance, "not a Series; give a frame: what its to_frame"),
        (in_polars(FRAME).lazy(), "not a LazyFrame; give what its collect"),
        (in_arrow(FRAME).to_reader(), "can be read once only: give what its read_all"),
        (FRAME.set_axis(pandas.MultiIndex.from_product([["a", "b"], ["x", "y", "z"]]), axis=1), "columns of 2 levels"),
        (FRAME.set_axis(["a", "a", *"bcde"], axis=1), "several columns named 'a'"),
        (in_dask(FRAME).map_partitions(lambda part: part.loc[-1], meta=FRAME), "cannot be computed .KeyError"),
    ],
)
def test_other_objects_and_frames_are_refused(frame, message):
    refused(lambda: dsinga.table(frame), message)


def test_partitions_of_other_kinds_are_refused():
    dd = pytest.importorskip("dask.dataframe")
    from dask import delayed

    parts = [delayed(FRAME[:200]), delayed(FRAME[200:].assign(stops="one"))]
    with pytest.raises(dsinga.UserError, match="'stops' of the table has numbers in one part and texts in the part fr"):
        dsinga.table(dd.from_delayed(parts, meta=FRAME, verify_meta=False))


def test_columns_of_which_nothing_can_be_learnt_are_left_out(caplog):
    frame = FRAME.assign(year=2013, gap=np.nan, tail=[f"N{row}" for row in range(600)], zip=["1", "2", "3"] * 200)
    frame = frame.assign(code=pandas.Categorical([1, 2, 3] * 200), day=["2025-10-03", "2025-10-04 08:00"] * 300)
    with caplog.at_level(logging.WARNING, "dsinga"):
        table = dsinga.table(frame, label="late")
    assert {column.name for column in table.definition.column} == {*FRAME, "zip", "code", "day"} - {"late"}
    for sentence in (
        "one value in all records: year",
        "no value in all records: gap",
        "another text in each record: tail",
        "column 'zip' has texts that are numbers",
        "column 'day' has texts that are dates, such as '2025-10-03'",
    ):
        assert sentence in caplog.text
    assert "'code'" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distance": "far"}, "'distance' of the table has texts, but numbers in the records of training"),
        ({"distance": np.inf}, "infinity in record 0, column 'distance'"),
        ({"is_full": 2}, "'is_full' has 2 in record 0, but booleans"),
        ({"is_full": "True"}, "'is_full' of the table has texts, but booleans in the records of training"),
        ({"late": "maybe"}, "column 'late' has the label 'maybe' in record 0; its classes are no, yes"),
        ({"late": None}, "no label in record 0 of column 'late'"),
    ],
)
def test_other_frames_are_refused_by_a_model(model, changes, message):
    refused(lambda: model.evaluate(FRAME.assign(**changes)), message)


def test_predictions_need_no_labels(model):
    known = model.predict(FRAME)
    np.testing.assert_array_equal(model.predict(FRAME.assign(late=None)), known)
    np.testing.assert_array_equal(model.predict(FRAME.drop(columns="late")), known)
    assert model.predict(FRAME[:0]).shape == (0, 2)


def test_arrays_are_refused_unless_they_are_opened_as_records(model):
    x, y = TABLE.read(np.arange(600))
    for call in (model.predict, lambda x: model.evaluate(x, y)):
        with pytest.raises(UserError, match="trained on a table; give a data frame with the columns distance, "):
            call(x)
    np.testing.assert_array_equal(model.predict(dsinga.data.open_records(x)), model.predict(FRAME))


def test_mistakes_are_named_with_their_remedies(model) -> None:
    net = nn.Sequential([nn.Dense(2)])
    net.compile("sgd", "sparse_categorical_crossentropy")
    for frame in (FRAME, in_dask(FRAME), in_polars(FRAME), in_arrow(FRAME)):
        with pytest.raises(UserError, match=r"give dsinga.table\(frame"):
            net.fit(frame, FRAME.is_full, progress=False)
    for frame in (FRAME, in_dask(FRAME), TABLE):
        with pytest.raises(UserError, match=f"not a {type(frame).__name__}; use predict, whose outputs"):
            model.predict_lazily(frame)
    with pytest.raises(dsinga.UserError, match="validation_data has no labels"):
        model.fit(TABLE, validation_data=FRAME.drop(columns="late"), progress=False)
    labels = FRAME[["stops", "distance"]]
    for y in (labels, in_dask(labels)):
        with pytest.raises(UserError, match="no label in record 0 of column 'distance'"):
            dsinga.table(FRAME.drop(columns="late"), y)


def test_a_batch_of_a_frame_is_tested_but_not_trained_on(model):
    assert model.test_on_batch(FRAME[:9]) == model.evaluate(FRAME[:9])["loss"]
    for x, y in ((FRAME[:9], None), (FRAME[:9], [0] * 9), (TABLE, None)):
        with pytest.raises(UserError, match="train_on_batch takes arrays; give fit the data fr"):
            model.train_on_batch(x, y)


def test_a_table_has_no_more_columns_than_a_job(monkeypatch):
    text = "a" * 1001  # a category that no job has room for
    (column,) = dsinga.table(FRAME[["carrier"]].assign(carrier=[text, "b"] * 300)).definition.column
    assert column.category == ["b"]
    monkeypatch.setattr("dsinga.addons.tables.learning.MOST_KEPT", 500)
    refused(lambda: dsinga.table(FRAME), "6 columns with more than 500 quantiles and categories")


def test_whole_numbers_of_any_type_are_the_categories_that_they_were_in_training():
    stops = FRAME.stops.to_numpy()
    hours, ids = pandas.Series(pandas.to_timedelta(stops, "h")), 2**60 + 1 + 3 * stops
    frame = pandas.DataFrame({"hours": hours, "id": ids, "stops": stops})
    table = dsinga.table(frame, unknown="error")
    other = frame.assign(hours=hours.astype("timedelta64[s]"), id=ids.astype("uint64"), stops=stops.astype("float32"))
    codes = dsinga.table(other, columns=table.definition).read(np.arange(600))[0][:, 3:]
    for column in range(3):
        assert len({*zip(codes[:, column], stops, strict=True)}) == 4


def test_a_new_category_is_missing_or_refused():
    table = dsinga.table(FRAME, label="late")
    new = FRAME.assign(carrier="AB")
    codes = dsinga.table(new, columns=table.definition).read(np.arange(3))[0][:, -1]
    np.testing.assert_array_equal(codes, 0)
    strict = dsinga.table(FRAME, label="late", unknown="error")
    refused(lambda: dsinga.table(new, columns=strict.definition), "column 'carrier' has the category 'AB' in record 0")


def test_dates_have_the_parts_that_are_asked_for():
    assert dsinga.table(FRAME, label="late", dates=["hour", "weekday"]).parts.numbers[-2:] == (
        "leaves.hour",
        "leaves.weekday",
    )
    by_column = dsinga.table(FRAME, label="late", dates={"leaves": ["month", "hour"]})
    assert by_column.parts.numbers[2:] == ("leaves.hour",)  # all are in January


def test_labels_of_any_library_keep_their_classes():
    x = FRAME.drop(columns="late")
    for labels in (FRAME.late, FRAME.late.to_numpy(), FRAME.late.astype("category"), in_dask(FRAME).late):
        table = dsinga.table(x, labels)
        assert table.definition.classes == ["no", "yes"]
        np.testing.assert_array_equal(table.read(np.arange(600))[1], FRAME.late == "yes")


def test_a_number_far_from_those_of_training_names_its_column():
    table = dsinga.table(FRAME, label="late", scaling="standard")
    far = FRAME.assign(distance=1e300)
    with pytest.raises(dsinga.UserError, match="column 'distance' has a number in record 0 that is so far"):
        table.definition.open_records("data", far, has_labels=False).columns[0].load(0, 1)
    robust = dsinga.table(FRAME, label="late", scaling="robust")
    records = robust.definition.open_records("data", far, has_labels=False)
    assert records.columns[0].load(0, 1).max() == 3.0  # the smooth clip of numbers of any size


def test_columns_with_numbers_as_names_are_named_by_them():
    frame = FRAME.set_axis(range(FRAME.shape[1]), axis=1)
    label = FRAME.columns.get_loc("late")
    chosen = [number for number in frame.columns if number != label]
    assert dsinga.table(frame, label=label, columns=chosen).definition.label == str(label)
