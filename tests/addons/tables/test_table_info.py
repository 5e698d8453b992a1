"""What ``dsinga data info`` prints of parquet, and the message that it writes for a job."""

import numpy as np
import pytest
from click.testing import CliRunner

import dsinga
from dsinga.commands.cli import main_group
from tests.addons.tables.test_table_records import flights, in_arrow

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
