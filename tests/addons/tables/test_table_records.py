"""Tables: columns are learnt once, and applied by name to frames of any library."""

import logging

import numpy as np
import pytest
from click.testing import CliRunner

import dsinga
from dsinga import nn
from dsinga.commands.cli import main_group
from dsinga.job import loads, to_text
from tests.support.refusals import refused

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def flights(rows=600, seed=0):
    """Return a frame with numbers, categories, booleans, dates and gaps, and a label that follows from them."""
    random = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "distance": random.lognormal(size=rows),
            "stops": random.integers(0, 4, rows),
            "carrier": random.choice(["AA", "UA", "B6"], rows),
            "leaves": pandas.date_range("2013-01-01", periods=rows, freq="h"),
            "is_full": random.random(rows) < 0.3,
        }
    )
    frame.loc[::7, "distance"] = np.nan
    frame.loc[::11, "carrier"] = None
    is_late = (frame.distance.fillna(2) + (frame.carrier == "AA")) > 1.5
    return frame.assign(late=np.where(is_late, "yes", "no"))


def in_dask(frame):
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)


def in_arrow(frame):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame, preserve_index=False)


def in_polars(frame):
    return pytest.importorskip("polars").from_pandas(frame)


@pytest.mark.parametrize("first", ["dense", "table_inputs", "no categories"])
def test_categories_that_a_dense_layer_reads_are_named_once(first, caplog):
    frame = flights()
    table = dsinga.table(frame.drop(columns=["stops", "carrier"] * (first == "no categories")), label="late")
    numbers, flags, _, sizes = table.parts
    data = nn.Input(table.shape)
    features = dsinga.models.tables.table_inputs(data, len(numbers), len(flags), sizes)
    model = nn.Model(data, nn.Dense(2)(features if first == "table_inputs" else data))
    model.compile("adam", "sparse_categorical_crossentropy")
    with caplog.at_level(logging.WARNING, "dsinga"):
        model.fit(table, progress=False)
        model.fit(table, progress=False)
    texts = [record.getMessage() for record in caplog.records]
    assert [text[:40] for text in texts] == ["the categories of x (stops, carrier) are"] * (first == "dense")
    assert all("dsinga.models.tabm" in text and "dsinga.models.tables.table_inputs" in text for text in texts)


def test_a_model_reads_other_frames_by_name():
    frame = flights()
    table = dsinga.table(frame, label="late")
    model = nn.Sequential([nn.Input(table.shape), nn.Dense(16, "relu"), nn.Dense(2)])
    model.compile(nn.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(table, validation_data=flights(seed=1), epochs=12, progress=False)
    assert model.evaluate(flights(seed=1))["accuracy"] > 0.8
    expected = model.predict(frame)
    others = frame.drop(columns="late")[["is_full", "leaves", "carrier", "stops", "distance"]]
    others = others.assign(carrier=others.carrier.astype("category"), stops=others.stops.astype("float32"), new=1)
    for same in (others, in_dask(others), in_polars(frame)):
        np.testing.assert_array_equal(model.predict(same), expected)
    with pytest.raises(dsinga.UserError, match="no column 'distance', .* did you mean 'distances'"):
        model.predict(frame.rename(columns={"distance": "distances"}))


def test_a_job_keeps_the_definition_by_which_a_resumed_run_reads_columns(tmp_path):
    table, frame = dsinga.table(flights(60), label="late"), flights(60, seed=1)
    model = nn.Sequential([nn.Input(table.shape), nn.Dense(2)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    job = loads(to_text(model.job(table, train_steps=4)))
    unbroken = dsinga.train(job, data=frame, progress=False)
    assert unbroken.job.neuralnet.layer[0].store_conf.table == table.definition
    dsinga.train(job.replace(train_steps=2), data=frame, workspace=tmp_path, progress=False)
    turned = frame[frame.columns[::-1]]
    resumed = dsinga.train(job, data=turned, workspace=tmp_path, resume=True, progress=False)
    np.testing.assert_array_equal(resumed.params["dense_weight"], unbroken.params["dense_weight"])
    layer = job.neuralnet.layer[0]
    job.neuralnet.layer[0] = layer.replace(store_conf=layer.store_conf.replace(table=None))
    learnt_anew = dsinga.table(turned, label="late")
    with pytest.raises(dsinga.UserError, match="whose records of layer 'data' have other columns of a table, or these"):
        dsinga.train(job, data=learnt_anew, workspace=tmp_path, resume=True, progress=False)


def in_parquet(frame, tmp_path):
    frame.to_parquet(tmp_path / "flights.parquet", index=False, row_group_size=25)
    return tmp_path / "flights.parquet"


@pytest.mark.parametrize("convert", [lambda frame, _: frame, lambda frame, _: in_dask(frame), in_parquet])
def test_classes_have_weights_and_the_last_records_validate(convert, tmp_path):
    frame = flights(80)
    table = dsinga.table(frame, label="late")
    weights = np.where(frame.late == "yes", 3.0, 1.0)

    def fit(source, **options):
        net = nn.Sequential([nn.Input(table.shape), nn.Dense(2)])
        net.compile("sgd", "sparse_categorical_crossentropy")
        rows = net.fit(source, epochs=2, batch_size=10, progress=False, **options).history
        return rows, net.predict(frame)

    given = dsinga.table(convert(frame, tmp_path), columns=table.definition)
    rows, predicted = fit(given, class_weight={"yes": 3.0}, sample_weight=np.full(80, 2.0), validation_split=0.25)
    parts = [dsinga.table(part, columns=table.definition) for part in (frame[:60], frame[60:])]
    options = {"sample_weight": weights[:60] * 2, "validation_data": parts[1]}
    expected, from_parts = fit(parts[0], **options)
    assert rows["loss"] == pytest.approx(expected["loss"])
    np.testing.assert_allclose(predicted, from_parts, rtol=1e-4, atol=1e-5)
    refused(lambda: fit(given, class_weight={"yse": 3.0}), "'yse'", "did you mean 'yes'", error=dsinga.UserError)


def test_labels_may_be_given_beside_the_records_of_a_table():
    frame = flights()
    x, y = frame.drop(columns="late"), frame.late
    params = []
    for source in ((dsinga.table(frame, label="late"), None), (dsinga.table(x), y), (dsinga.table(x, y), None)):
        net = nn.Sequential([nn.Input(source[0].shape), nn.Dense(2)])
        net.compile("sgd", "sparse_categorical_crossentropy")
        net.fit(*source, epochs=1, progress=False)
        params.append(net.predict(x))
    for others in params[1:]:
        np.testing.assert_array_equal(others, params[0])


# What ``dsinga data info`` prints of parquet, and the message that it writes for a job.
parquet = pytest.importorskip("pyarrow.parquet")

JOB = """
name: "flights" train_steps: 20 disp_freq: 20
train_one_batch {{ alg: kBP }}
updater {{ type: kAdam learning_rate {{ type: kFixed base_lr: 0.01 }} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ path: "flights" batchsize: 32 {message} }} }}
  layer {{ name: "fc" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 2 }}
    param {{ name: "w" init {{ type: kUniformSqrtFanIn }} }} param {{ name: "b" }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: ["fc", "data"] }}
}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights").mkdir()
    frame = in_arrow(flights().assign(year=2013))
    for part in range(2):
        parquet.write_table(frame.slice(300 * part, 300), tmp_path / "flights" / f"{part}.parquet")
    return tmp_path / "flights"


def info(*arguments):
    run = CliRunner().invoke(main_group, ["data", "info", *arguments])
    return run.stdout if run.exit_code == 0 else str(run.exception)


def test_the_columns_are_described(folder):
    text = info("flights", "--label", "late")
    for line in (
        "records            600",
        "column distance    number; 0.0202536 to 21.4567, median 0.979431; scaled; 14.33% missing, a flag",
        "column stops       number; 0 to 3, median 2; scaled; a code for each of 4: 3, 1, 2, 0",
        "column carrier     category; a code for each of 3: B6, AA, UA; 9.17% missing",
        "column leaves      date; 2013-01-01 to 2013-01-25; day, monthday, yearday, weekday, hour, scaled",
        "column is_full     boolean; a flag",
        "column year        left out",
        "label late         2 classes: no, yes",
        "record             11 numbers: 7 scaled (quantile), 2 flags, 2 codes",
    ):
        assert line in text.splitlines()
    assert "no column 'lat'; did you mean 'late'" in info("flights", "--label", "lat")
    table = dsinga.table(folder, label="late")
    assert repr(table).endswith("600 records (11,): 7 numbers, 2 flags, 2 categories, labels 'late'>")
    assert "<tr><th>label late</th><td>2 classes: no, yes</td></tr>" in table._repr_html_()


def test_a_job_with_the_message_trains_on_the_folder(folder):
    message = info("flights", "--label", "late", "--message")
    job = dsinga.job.loads(JOB.format(message=message))
    table = dsinga.table(folder, label="late")
    assert job.neuralnet.layer[0].store_conf.table == table.definition
    result = dsinga.train(job, progress=False)
    assert dsinga.predict(job, result.params, "fc", data=flights()).shape == (600, 2)


def test_other_sources_need_no_message(tmp_path):
    dsinga.data.write_store(tmp_path / "x.zarr", [(np.zeros((8, 2), np.float32), np.zeros(8, int))])
    assert "a job reads" in info(str(tmp_path / "x.zarr"), "--message")
