"""Reading SINGA 0.x checkpoints: a ``BlobProtos`` message (common.proto) in each file ``step<N>-worker<id>``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from dsinga.base.errors import UserError
from dsinga.base.regular_files import open_regular

MOST_BYTES = (1 << 31) - 1  # of a protobuf message


def read_singa(path: Path) -> dict[str, np.ndarray]:
    """Return the params of a SINGA checkpoint by name, float32 arrays in the shapes given in the file.

    Raises UserError, naming the file, if it is truncated or not a SINGA checkpoint.
    """
    protos = _blob_protos()()
    try:
        with open_regular(path, MOST_BYTES) as file:
            protos.ParseFromString(file.read())
        if not protos.name or len(protos.name) != len(protos.blob):
            raise ValueError(f"it has {len(protos.name)} names for {len(protos.blob)} params")
        return {
            name: np.frombuffer(blob.data, "<f4").reshape(tuple(blob.shape)).astype(np.float32)
            for name, blob in zip(protos.name, protos.blob, strict=True)
        }
    except (OSError, ValueError, message.DecodeError) as error:
        raise UserError(f"{path} cannot be read as a checkpoint of SINGA: {error}") from error


@functools.cache
def _blob_protos() -> Any:
    """Return the message class BlobProtos {name = 4, blob = 5 {shape = 1, data = 2}}; other fields are not needed."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="dsinga/blobs.proto", package="dsinga.singa", syntax="proto2")
    blob = file.message_type.add(name="Blob")
    blob.field.add(name="shape", number=1, type=field.TYPE_INT32, label=field.LABEL_REPEATED)
    # Packed floats and a byte string have the same encoding; declared as bytes, numpy reads them without a Python loop.
    blob.field.add(name="data", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    protos = file.message_type.add(name="Blobs")
    protos.field.add(name="name", number=4, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    protos.field.add(
        name="blob", number=5, type=field.TYPE_MESSAGE, type_name=".dsinga.singa.Blob", label=field.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dsinga.singa.Blobs"))
