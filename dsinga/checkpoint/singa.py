"""Reads checkpoints of SINGA 0.x, files ``step<N>-worker<id>``, and makes protobuf classes for them.

Each checkpoint is a ``BlobProtos`` message (common.proto).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.advice import option
from dsinga.base.errors import UserError
from dsinga.base.regular_files import open_regular

MOST_BYTES = (1 << 31) - 1  # of a protobuf message


def read_singa(path: Path) -> dict[str, np.ndarray]:
    """Read the params of a SINGA checkpoint, float32 arrays by name."""
    message = _blob_protos()
    try:
        with open_regular(path, MOST_BYTES) as file:
            protos = decode(message, file.read())
        if not protos.name or len(protos.name) != len(protos.blob):
            raise ValueError(f"it has {len(protos.name)} names for {len(protos.blob)} params")
        return {
            name: np.frombuffer(blob.data, "<f4").reshape(tuple(blob.shape)).astype(np.float32)
            for name, blob in zip(protos.name, protos.blob, strict=True)
        }
    except (OSError, ValueError) as error:
        if path.suffix == ".jsonl":
            folder = option("checkpoint", str(path.parent), python=f"params={str(path.parent)!r}")
            raise UserError(f"{path} has metrics, not params; give {folder}") from error
        raise UserError(f"{path} cannot be read as a checkpoint of SINGA: {error}") from error


def _blob_protos() -> Any:
    """Return the protobuf class of a SINGA checkpoint."""
    # Packed floats and a byte string have the same encoding; declared as bytes, numpy reads them without a Python loop.
    blob = {"shape": (1, "int32", True), "data": (2, "bytes", False)}
    return message_class(Blob=blob, Blobs={"name": (4, "string", True), "blob": (5, "Blob", True)})


def message_class(**messages: Mapping[str, tuple[int, str, bool]]) -> Any:
    """Make a protobuf message class without generated code.

    Each message maps the name of a field to its number, its type, and whether it is repeated; the last one's class is
    returned. Raises UserError if protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        text = "checkpoints and records of SINGA and Caffe need protobuf to be read"
        raise UserError(f"{text}: pip install 'dsinga[singa]'") from None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="dsinga.proto", package="dsinga", syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in messages:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".dsinga.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"dsinga.{name}"))


def decode(message: Any, data: bytes) -> Any:
    """Decode a protobuf message; raise ValueError for other data."""
    from google.protobuf.message import DecodeError

    try:
        return message.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
