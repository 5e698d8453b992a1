"""Loading the params of one net into another, also SINGA's: by name, later paths first, errors for differing shapes."""

import logging
import os
import sys

import numpy as np
import pytest
import safetensors.numpy
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import dsinga
from dsinga.base.errors import RunError, UserError
from dsinga.checkpoint import export_safetensors, params_of, port, read_checkpoint, read_params, write_checkpoint
from tests.support.refusals import refused
from tests.support.small_job import assert_same, linear

ONE, TWO = np.full((2, 3), 1, np.float32), np.full((2, 3), 2, np.float32)
SHAPES = {"w": (2, 3), "b": (3,), "fresh": (4,)}


def test_params_match_by_name_and_later_paths_override_earlier_ones(tmp_path):
    write_checkpoint(tmp_path / "old", 1, {"w": ONE, "b": np.ones(3, np.float32)}, {}, {})
    write_checkpoint(tmp_path / "new", 2, {"w": TWO}, {}, {})
    params = port(SHAPES, [tmp_path / "old" / "step1", tmp_path / "new" / "step2"], report=pytest.fail)
    assert params.keys() == {"w", "b"}  # "fresh" keeps its initial value
    np.testing.assert_array_equal(params["w"], TWO)
    np.testing.assert_array_equal(port(SHAPES, [tmp_path / "new", tmp_path / "old"])["w"], ONE)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([1], "params must be arrays by name or the path of a checkpoint, not list"),
        ({1: ONE}, "params must be arrays by name, but the name 1 is no str"),
        ({"w": "abc"}, "the param 'w' is no array of numbers, but str"),
        ({"w": [[1], [2, 3]]}, "the param 'w' is no array of numbers: "),
    ],
)
def test_params_that_are_none_are_refused_wherever_they_are_given(params, message):
    job = linear("shape=6", "batchsize=4", "=train_steps=1")
    data = (np.zeros((8, 6), np.float32), np.zeros(8, np.int64))
    refused(lambda: dsinga.train(job, data={"train": data, "test": data}, params=params, progress=False), message)
    refused(lambda: dsinga.evaluate(job, params, data=data), message)


def test_numbers_in_lists_are_params(tmp_path):
    write_checkpoint(tmp_path, 1, {"w": ONE}, {}, {})
    for params in ({"w": ONE.tolist()}, {"w": ONE}, tmp_path / "step1", str(tmp_path)):
        np.testing.assert_array_equal(params_of(params)["w"], ONE)


@pytest.mark.parametrize("place", ["folder", "folder/checkpoint", "folder/checkpoint/step20"])
def test_a_folder_means_the_latest_checkpoint_in_it(tmp_path, monkeypatch, place):
    for step, array in ((3, ONE), (20, TWO)):
        write_checkpoint(tmp_path / "folder" / "checkpoint", step, {"w": array}, {}, {})
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(read_params(place)["w"], TWO)
    monkeypatch.chdir(tmp_path / "folder")
    np.testing.assert_array_equal(read_params(place, roots=["/nowhere", tmp_path])["w"], TWO)


def test_the_working_directory_comes_before_the_roots(tmp_path, monkeypatch):
    for name, array in (("working", ONE), ("root", TWO)):
        write_checkpoint(tmp_path / name / "checkpoint", 1, {"w": array}, {}, {})
    monkeypatch.chdir(tmp_path / "working")
    np.testing.assert_array_equal(read_params("checkpoint", [tmp_path / "root"])["w"], ONE)


@pytest.mark.parametrize("name", ["step6000-worker0", "step6000-worker0.bin"])
def test_singas_name_of_a_checkpoint_finds_the_checkpoint_of_that_step(tmp_path, name):
    write_checkpoint(tmp_path, 6000, {"w": TWO}, {}, {})
    write_checkpoint(tmp_path, 7000, {"w": ONE}, {}, {})
    np.testing.assert_array_equal(port(SHAPES, [name], roots=[tmp_path])["w"], TWO)


@pytest.mark.parametrize("save", [safetensors.numpy.save_file, lambda arrays, path: np.savez(path, **arrays)])
def test_npz_and_safetensors_files_can_be_read(tmp_path, save):
    path = tmp_path / ("w.npz" if save is not safetensors.numpy.save_file else "w.safetensors")
    save({"w": ONE.astype(np.float16)}, path)
    array = port(SHAPES, [path])["w"]
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, ONE)


def test_mistakes_are_named_with_their_remedies(tmp_path, blob_protos) -> None:
    path = write_checkpoint(tmp_path, 1, {"w": ONE.T}, {}, {})
    refused(lambda: port(SHAPES, [path]), r"'w' has the shape \(2, 3\) in this net, but \(3, 2\) in .*/step1: ")
    with open(tmp_path / "w.npz", "wb") as file:
        np.save(file, ONE)
    refused(lambda: read_params(tmp_path / "w.npz"), r"w\.npz cannot be read as npz: it has an array without a name")
    np.savez(tmp_path / "w.npz", w=np.array([{}], object))
    refused(lambda: read_params(tmp_path / "w.npz"), r"w\.npz cannot be read as npz")
    write_checkpoint(tmp_path, 3, {"w": np.ones(3, np.float32)}, {}, {})
    write_checkpoint(tmp_path, 6, {"w": np.ones(3, np.int32)}, {}, {})
    refused(lambda: read_checkpoint(tmp_path / "step6"), r"'w' is int32, not floating-point; ")
    refused(lambda: read_params(tmp_path), "the checkpoint before it is .*step3")
    protos = blob_protos(name=["w"], id=[0], version=[0])
    protos.blob.add(shape=[2, 2], data=[1, 2, 3])
    path = tmp_path / "step1-worker0"
    path.write_bytes(protos.SerializeToString())
    refused(lambda: read_params(path), "step1-worker0 cannot be read")


def test_params_that_the_net_does_not_have_are_reported(tmp_path, caplog):
    path = write_checkpoint(tmp_path, 1, {"w": ONE, "z": ONE, "y": ONE}, {}, {})
    messages = []
    assert port(SHAPES, [path], report=messages.append).keys() == {"w"}
    assert messages == [f"the net has no params y, z of {path}: they are left out"]
    with caplog.at_level(logging.WARNING):
        port(SHAPES, [path])
    assert caplog.messages == messages


def test_the_error_for_a_missing_checkpoint_lists_the_paths(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"no checkpoint 'empty' \(looked for .*/empty, {tmp_path}/empty\)"):
        port(SHAPES, ["empty"], roots=[tmp_path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"\(looked for {tmp_path}/empty\)"):  # each path once
        port(SHAPES, ["empty"], roots=[tmp_path])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("data", [b"", b"not tensors at all", b"\xff" * 100, b"PK\x03\x04" + b"\0" * 40])
def test_files_of_another_kind_are_named(tmp_path, suffix, data):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(data)
    refused(lambda: read_params(path), f"{path} cannot be read as {suffix[1:]}")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".bin"])
def test_a_pipe_is_named(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    os.mkfifo(path)
    refused(lambda: read_params(path), rf"{path}.*it is a pipe, not a file; write it to a file first")


def test_export_writes_a_valid_safetensors_file(tmp_path):
    params = {"w": ONE, "b": np.zeros(3, np.float32)}
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, 4, params, {"w": {"h": ONE}}, {}))
    path = tmp_path / "out.safetensors"
    path.write_text("something older")
    export_safetensors(checkpoint, path)
    exported = safetensors.numpy.load_file(path)
    assert exported.keys() == params.keys()
    assert list(read_params(path)) == ["w", "b"]  # the library sorts them by name
    assert_same(params, exported)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.safetensors", "step4"]


def test_an_export_that_fails_leaves_the_old_file(tmp_path, small_disk):
    path = tmp_path / "out.safetensors"
    path.write_text("something older")
    with pytest.raises(RunError, match="cannot be written"):
        export_safetensors(dsinga.checkpoint.Checkpoint(1, {"w": np.zeros(1 << 20, np.float32)}, {}, {}), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "something older"


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_params_of_integers_are_refused_with_file_and_name(tmp_path, suffix):
    """As where a header says I32 in place of F32, so that the bits of weights would be read as whole numbers."""
    path = tmp_path / f"w{suffix}"
    save = safetensors.numpy.save_file if suffix == ".safetensors" else lambda arrays, path: np.savez(path, **arrays)
    save({"count": np.array(7), "w": np.ones(3, np.float32)}, path)
    assert read_params(path).keys() == {"count", "w"}  # PyTorch's num_batches_tracked
    save({"b": np.ones(3, np.float32), "w": np.ones(3, np.int32)}, path)
    refused(lambda: read_params(path), rf"w\{suffix}: param 'w' is int32, not floating-point; write it as float32")


W = np.random.default_rng(1).standard_normal((20, 25)).astype(np.float32)
B = np.float32([-0.0, 1e-40, np.inf])


@pytest.fixture(scope="module")
def blob_protos():
    """BlobProto {repeated int32 shape = 1; repeated float data = 2 [packed]}, BlobProtos {id, version, name, blob}."""
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="common.proto", package="singa", syntax="proto2")
    blob = file.message_type.add(name="BlobProto")
    blob.field.add(name="shape", number=1, type=proto.TYPE_INT32, label=proto.LABEL_REPEATED)
    data = blob.field.add(name="data", number=2, type=proto.TYPE_FLOAT, label=proto.LABEL_REPEATED)
    data.options.packed = True
    blobs = file.message_type.add(name="BlobProtos")
    for number, (name, kind) in enumerate([("id", "INT32"), ("version", "INT32"), ("name", "STRING")], start=2):
        kind = getattr(proto, f"TYPE_{kind}")
        blobs.field.add(name=name, number=number, type=kind, label=proto.LABEL_REPEATED)
    message = proto.TYPE_MESSAGE
    blobs.field.add(name="blob", number=5, type=message, type_name=".singa.BlobProto", label=proto.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("singa.BlobProtos"))


@pytest.fixture
def checkpoint_file(blob_protos, tmp_path):
    protos = blob_protos()
    for id, (name, array) in enumerate({"conv1_weight": W, "conv1_bias": B}.items()):
        protos.id.append(id)
        protos.version.append(1000)
        protos.name.append(name)
        protos.blob.add(shape=array.shape, data=array.ravel().tolist())
    path = tmp_path / "step1000-worker0"
    path.write_bytes(protos.SerializeToString())
    return path


def test_params_are_read_by_name(checkpoint_file):
    params = read_params(checkpoint_file)
    assert list(params) == ["conv1_weight", "conv1_bias"]
    np.testing.assert_array_equal(params["conv1_weight"], W)
    np.testing.assert_array_equal(params["conv1_bias"].view(np.int32), B.view(np.int32))
    assert all(array.dtype == np.float32 and array.flags.writeable for array in params.values())


def test_protobuf_that_is_missing_is_named_with_its_extra(checkpoint_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    refused(lambda: read_params(checkpoint_file), r"need protobuf to be read: pip install 'dsinga\[singa\]'")


@pytest.mark.parametrize("length", [0, 1, 30, 500, -1])
def test_a_truncated_file_is_named(checkpoint_file, length):
    checkpoint_file.write_bytes(checkpoint_file.read_bytes()[:length])
    refused(lambda: read_params(checkpoint_file), "step1000-worker0 cannot be read as a checkpoint of SINGA")
