"""Reading SINGA's checkpoints, which the tests write by protobuf from the definition in SINGA's common.proto."""

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dsinga.checkpoint import port, read_params
from dsinga.errors import UserError

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


def test_they_can_be_ported(checkpoint_file):
    params = port(
        {"conv1_weight": (20, 25)},
        ["step1000-worker0"],
        roots=[checkpoint_file.parent],
        report=lambda message: None,
    )
    np.testing.assert_array_equal(params["conv1_weight"], W)


@pytest.mark.parametrize("length", [0, 1, 30, 500, -1])
def test_a_truncated_file_is_named(checkpoint_file, length):
    checkpoint_file.write_bytes(checkpoint_file.read_bytes()[:length])
    with pytest.raises(UserError, match="step1000-worker0 cannot be read as a checkpoint of SINGA"):
        read_params(checkpoint_file)


def test_a_blob_that_is_shorter_than_its_shape_is_named(blob_protos, tmp_path):
    protos = blob_protos(name=["w"], id=[0], version=[0])
    protos.blob.add(shape=[2, 2], data=[1, 2, 3])
    path = tmp_path / "step1-worker0"
    path.write_bytes(protos.SerializeToString())
    with pytest.raises(UserError, match="step1-worker0 cannot be read"):
        read_params(path)


def test_another_file_is_named(tmp_path):
    path = tmp_path / "step1-worker0"
    path.write_text("a text\n")
    with pytest.raises(UserError, match="cannot be read as a checkpoint of SINGA"):
        read_params(path)
