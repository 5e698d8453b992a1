"""The commands export and import: files of ONNX from checkpoints, for each server, and back."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga as package
from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.command_line import JOB, Dsinga
from tests.support.later_import import keys_of, torch
from tests.support.onnx_nets import graph_of, loaded, node, session_of

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


# Params that a file combines with other arrays train as PyTorch trains them, or are refused by their names.
QUICK = {"exp of a scalar", "a sum", "weight norm", "parts of a weight that overlap"}
NAMES = keys_of("onnx_weights", "MODULES")


def array_of(tensor: Any) -> np.ndarray:
    """Return the numbers of a tensor."""
    array: np.ndarray = tensor.detach().numpy()
    return array


def check_params(model: nn.Model, module: Any) -> None:
    """Check that a model has the params of a module, but those of recurrent layers, whose gates are apart."""
    for name, param in module.named_parameters():
        if not name.startswith("r."):
            found = {name.replace(".", "_"), f"{name}_vector", "_".join(name.rsplit(".", 1))} & model.params.keys()
            ours = model.params[found.pop()]
            np.testing.assert_allclose(ours.reshape(param.shape), array_of(param), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("exporter", ["traced", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.ci) for each in NAMES])
def test_params_that_meet_params_train_as_in_pytorch(name: str, exporter: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if exporter == "plain":
        pytest.importorskip("onnxscript")
    from tests.support import onnx_modules, onnx_weights

    for optimizers in (
        (nn.SGD(0.01), lambda params: torch.optim.SGD(params, 0.01)),
        (nn.Adam(0.01, epsilon=1e-4), lambda params: torch.optim.Adam(params, 0.01, eps=1e-4)),
    ):
        module, records = onnx_weights.made(name)
        path = tmp_path / "net.onnx"
        onnx_modules.exported(module, [records(3)], path, exporter)
        if name in onnx_weights.REFUSED:
            with pytest.raises(UserError, match=r"c\.parametrizations|params w|weight, which layers take in forms"):
                nn.load_onnx(path)
            return
        model, optimizer = nn.load_onnx(path), optimizers[1](module.parameters())
        model.compile(optimizers[0], "mse")
        shape = model.predict(array_of(records(1))).shape[1:]
        for step in range(10):
            x, y = records(8, step), np.random.default_rng(step).normal(size=(8, *shape)).astype(np.float32)
            optimizer.zero_grad()
            scores = module(x)
            torch.nn.functional.mse_loss(scores, torch.tensor(y).reshape(scores.shape)).backward()
            optimizer.step()
            model.train_on_batch(array_of(x), y)
        check_params(model, module)
        x = records(7, 99)
        theirs = array_of(module(x))
        np.testing.assert_allclose(model.predict(array_of(x)).reshape(theirs.shape), theirs, atol=1e-4)


def test_what_keeps_its_numbers_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = {"least": np.float32(-1), "seen": np.float32([1, 0, 1]), "p": np.ones(3, np.float32)}
    nodes = [node("Clip", "x least", "a"), node("Mul", "a seen", "b"), node("Mul", "b p")]
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert loaded(graph_of(nodes, arrays=arrays), tmp_path).params.keys() == {"p_vector", "mul.constant_vector"}
    assert "net: least, seen do not train as params of the net: they are masks or bounds" in caplog.text


@pytest.mark.parametrize(("size", "beta"), [(1, 3.0), (3, 3.0), (1, 1.0)])
def test_factors_of_a_product_and_its_bias_train(size: int, beta: float, tmp_path: Path) -> None:
    """The gradients are those of alpha·x·W + beta·b, also where one number is the bias of all."""
    random = np.random.default_rng(0)
    arrays = {"fc.weight": random.normal(size=(3, 3)).astype(np.float32), "b": np.ones(size, np.float32)}
    product = node("Gemm", "x fc.weight b", alpha=0.5, beta=beta)
    model, x = loaded(graph_of([product], arrays=arrays), tmp_path), random.normal(size=(5, 3)).astype(np.float32)
    model.compile(nn.SGD(1.0), "mse")
    error = 0.5 * x @ arrays["fc.weight"] + beta * arrays["b"]
    model.train_on_batch(x, np.zeros_like(error))
    slope = 2 * error / error.size
    np.testing.assert_allclose(model.params["fc_weight"], (arrays["fc.weight"] - 0.5 * x.T @ slope).T, atol=1e-5)
    expected = arrays["b"] - beta * slope.sum(axis=0 if size > 1 else None)
    np.testing.assert_allclose(model.params["b_vector"], expected, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_the_momentum_of_statistics_goes_out_and_in(momentum: float, tmp_path: Path) -> None:
    model = nn.Sequential([nn.Input(3), nn.Dense(2), nn.BatchNormalization(momentum=momentum, name="norm")])
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    model.export(tmp_path / "net.onnx", check=x)
    again = nn.load_onnx(tmp_path / "net.onnx")
    layer = again.predicting_net().layer("norm")
    assert layer.settings.momentum == pytest.approx(1 - momentum)
    again.compile("sgd", "mse")
    again.train_on_batch(x, np.zeros((8, 2), np.float32))
    assert (again.params["norm_mean"] == 0).all() == (momentum == 1)


@pytest.mark.parametrize("after", [
    lambda: [nn.LSTM(3)], lambda: [nn.Bidirectional(nn.GRU(3))], lambda: [nn.GlobalAveragePooling1D()],
    lambda: [nn.GRU(3, return_sequences=True), nn.GlobalMaxPooling1D()],
])  # fmt: skip
def test_masks_of_codes_are_read_back(after: Any, tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 7, (9, 5))
    model = nn.Sequential([nn.Input((5,)), nn.Embedding(7, 4, mask_zero=True), *after(), nn.Dense(2)])
    model.export(tmp_path / "net.onnx")
    np.testing.assert_allclose(nn.load_onnx(tmp_path / "net.onnx").predict(codes), model.predict(codes), atol=1e-6)
