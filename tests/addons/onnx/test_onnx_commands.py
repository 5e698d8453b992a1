"""The commands export and import: files of ONNX from checkpoints, for each server, and back."""

import json
from pathlib import Path

import numpy as np
import pytest

import dsinga as package
from dsinga import nn
from tests.support.command_line import JOB, Dsinga
from tests.support.onnx_nets import session_of

onnx = pytest.importorskip("onnx")


@pytest.fixture
def trained(dsinga: Dsinga) -> Dsinga:
    """The command line in a folder with the workspace "work" of a job that was trained."""
    done = dsinga("train", "job.conf")
    assert done.returncode == 0, done.stderr
    return dsinga


def outputs_of(file: Path, rows: np.ndarray) -> np.ndarray:
    """Return what ONNX Runtime computes of raw records."""
    session = session_of(file)
    return session.run(None, {session.get_inputs()[0].name: rows})[0]


@pytest.mark.parametrize(
    ("server", "file"), [("onnx", "net"), ("triton", "net/1/model.onnx"), ("mlflow", "net/model.onnx")]
)
def test_a_checkpoint_is_written_for_each_server_and_checked(trained: Dsinga, folder: Path, server, file) -> None:
    if server == "mlflow":
        pytest.importorskip("mlflow")
    done = trained("export", "work", "--to", server, "--out", "net", "--check", "test.zarr")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "wrote net"
    assert float(done.stdout.split(" by ")[1].split()[0]) < 1e-5
    rows = package.data.open_store(str(folder / "test.zarr")).read(np.arange(50))[0]
    expected = package.predict(package.load(folder / "job.conf"), folder / "work", layer="ip1")
    assert np.allclose(outputs_of(folder / file, rows.astype(np.float32)), expected, atol=1e-5)


def test_an_estimator_and_a_net_for_tables_are_exported_from_their_folders(dsinga: Dsinga, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    pandas, estimators = pytest.importorskip("pandas"), pytest.importorskip("dsinga.estimators")
    frame = pandas.DataFrame({"town": ["Ulm", "Bonn", None] * 40, "size": np.arange(120.0)})
    frame.assign(label=np.arange(120) % 2).to_parquet(folder / "frame.parquet")
    estimators.Classifier(epochs=1).fit(frame, np.arange(120) % 2).save(folder / "estimator")
    estimators.Regressor(epochs=1).fit(frame[["size"]], frame["size"]).save(folder / "numbers")
    table = package.table(folder / "frame.parquet", label="label")
    model = package.models.tabm(1, len(table.parts.flags), table.parts.sizes, 2, members=2, width=4)
    model.fit(table, epochs=1, progress=False)
    model.save(folder / "model")
    for source, inputs in ("estimator", {"town", "size"}), ("numbers", {"size"}), ("model", {"town", "size"}):
        done = dsinga("export", source, "--out", f"{source}.onnx", "--check", "frame.parquet")
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.split(" by ")[1].split()[0]) < 1e-4
        assert {each.name for each in onnx.load(folder / f"{source}.onnx").graph.input} == inputs


def test_a_step_a_saved_model_and_a_job_that_does_not_say_shapes(trained: Dsinga, folder: Path) -> None:
    records = package.data.open_store(str(folder / "train.zarr")).read(np.arange(100))
    package.data.write_store(folder / "train.zarr", [records], classes=["red", "green", "blue"], overwrite=True)
    model = nn.from_job(folder / "job.conf")
    model.params = folder / "work"
    model.save("saved")
    (folder / "job.conf").write_text(JOB.replace(" shape: 8", "").replace('"work"', '"other"'))
    assert trained("train", "job.conf").returncode == 0
    nets = {}
    for number, source in enumerate(("work/checkpoint/step20", "work", "saved", "other")):
        done = trained("export", source, "--out", f"{number}.onnx", "--opset", "22")
        assert done.returncode == 0, done.stderr
        nets[source] = onnx.load(f"{number}.onnx")
    assert {net.opset_import[0].version for net in nets.values()} == {22}
    assert [json.loads(net.metadata_props[1].value) for net in nets.values()] == [["red", "green", "blue"]] * 4
    params = [{tensor.name: tensor.raw_data for tensor in net.graph.initializer} for net in nets.values()]
    assert params[0] == params[1] == params[2] == params[3]
    (folder / "train.zarr").rename(folder / "moved.zarr")
    assert trained("export", "work", "--out", "without.onnx").returncode == 0
    refused = trained("export", "other", "--out", "again.onnx")
    assert refused.returncode == 2
    assert "train.zarr" in refused.stderr
    assert not (folder / "again.onnx").exists()


def test_what_cannot_be_exported_is_a_sentence(trained: Dsinga, folder: Path) -> None:
    for arguments, words in (
        (["nowhere", "--out", "net"], "there is no checkpoint 'nowhere'"),
        (["work/checkpoint/step20/params.safetensors", "--out", "net"], "does not say its job"),
        (["work", "--out", "net", "--opset", "99"], "opset is 99"),
        (["work", "--out", "net", "--check", "none.zarr"], "none.zarr"),
        (["work", "--out", "http://host/net"], "is a URL"),
        (["work", "--to", "triton", "--out", "work"], "work is there, and has no config.pbtxt"),
    ):
        refused = trained("export", *arguments)
        assert refused.returncode == 2, arguments
        assert words in refused.stderr
        assert refused.stderr.startswith("dsinga: ")
        assert refused.stderr.count("\n") == 1
        assert not (folder / "net").exists()


def test_a_net_goes_out_in_and_out_again(dsinga: Dsinga, folder: Path) -> None:
    x = nn.Input(8)
    model = nn.Model(x, nn.Dense(3)(nn.ReLU()(nn.Dense(16)(x))))
    model.save("model")
    assert dsinga("export", "model", "--out", "net.onnx").returncode == 0
    done = dsinga("import", "net.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote net/job.conf and net/params.safetensors\n"
    rows = np.random.default_rng(0).normal(size=(17, 8)).astype(np.float32)
    assert (nn.load_model("net").predict(rows) == model.predict(rows)).all()
    again = dsinga("export", "net", "--out", "again.onnx", "--check", "test.zarr")
    assert again.returncode == 0, again.stderr
    assert np.allclose(outputs_of(folder / "again.onnx", rows), model.predict(rows), atol=1e-5)


def test_a_file_that_is_none_is_not_imported(dsinga: Dsinga, folder: Path) -> None:
    (folder / "net.onnx").write_bytes(b"text")
    for arguments, words in ((["net.onnx"], "not an ONNX file"), (["net.onnx", "--shape", "3,x"], "--shape is 3,x")):
        refused = dsinga("import", *arguments)
        assert refused.returncode == 2
        assert words in refused.stderr
    assert not (folder / "net").exists()
