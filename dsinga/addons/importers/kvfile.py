"""The importer of SINGA's kvfiles: sequences of key-value pairs whose values are RecordProto messages.

Each pair is the key's size (8 bytes, native endian), the key, the value's size, the value; there is no header. The
message classes of the records of SINGA and Caffe are made from descriptors at run time, so there is no generated code
to keep up to date.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from dsinga.addons.importers.batches import Record, StoreContents, naming_errors, stack
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.regular_files import open_regular

_size = struct.Struct("=Q")


@register("importer", "kvfile")
def kvfile(source: str, encoded: bool = False) -> dict[str, StoreContents]:
    """Read the records of a kvfile in order; :func:`decode_record` gives their shapes and dtypes.

    Args:
        source: the file.
        encoded: whether the pixels of each record are an image file, such as JPEG.
    """
    return {"": StoreContents(stack(read_kvfile(source, encoded)), os.path.getsize(source))}


def read_kvfile(path: str, encoded: bool = False) -> Iterator[Record]:
    """Yield the records of a kvfile.

    Raises:
        UserError: the file is truncated or not a kvfile, or a value is not a record; the message has number and offset.
    """
    total = os.path.getsize(path)
    with naming_errors(path), open_regular(path) as file:
        number = offset = 0
        while offset < total:
            where = f"{path}: record {number} at byte {offset}"
            pair = []
            for part in ("key", "value"):
                header = file.read(_size.size)
                size = _size.unpack(header)[0] if len(header) == _size.size else 0
                offset += len(header) + size
                if len(header) < _size.size or offset > total:
                    kind = "truncated" if number else "not a kvfile, or truncated"
                    end = f"the end of the file ({total} bytes)"
                    raise UserError(f"{where}: its {part} would end after {end}; the file is {kind}")
                pair.append(file.read(size))
            data, label = decode_record(pair[1], where, encoded)
            yield Record(data, label, where, offset)
            number += 1


_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED

# A SINGA Record contains a RecordProto in its field 5. The only field number that both use is 1, and a Record's field 1
# (its type) is not needed. So one message class serves for both.
_RECORD: dict[str, tuple[int, Any, Any]] = {
    "shape": (1, _Field.TYPE_INT32, _MANY),
    "label": (2, _Field.TYPE_INT32, _ONE),
    "pixel": (3, _Field.TYPE_BYTES, _ONE),
    "data": (4, _Field.TYPE_FLOAT, _MANY),
    "image": (5, _Field.TYPE_MESSAGE, _ONE),
}
_DATUM: dict[str, tuple[int, Any, Any]] = {
    "channels": (1, _Field.TYPE_INT32, _ONE),
    "height": (2, _Field.TYPE_INT32, _ONE),
    "width": (3, _Field.TYPE_INT32, _ONE),
    "data": (4, _Field.TYPE_BYTES, _ONE),
    "label": (5, _Field.TYPE_INT32, _ONE),
    "float_data": (6, _Field.TYPE_FLOAT, _MANY),
    "encoded": (7, _Field.TYPE_BOOL, _ONE),
}


def _message_class(name: str, fields: dict[str, tuple[int, Any, Any]]) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"dsinga/{name}.proto", package="dsinga.data", syntax="proto2")
    proto = file.message_type.add(name=name)
    for field, (number, kind, label) in fields.items():
        added = proto.field.add(name=field, number=number, type=kind, label=label)
        if kind == _Field.TYPE_MESSAGE:
            added.type_name = f".dsinga.data.{name}"
        if kind == _Field.TYPE_FLOAT and name == "RecordProto":
            added.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"dsinga.data.{name}"))


RecordProto = _message_class("RecordProto", _RECORD)
CaffeDatum = _message_class("CaffeDatum", _DATUM)


def decode_record(value: bytes, where: str, encoded: bool = False) -> tuple[np.ndarray, int | None]:
    """Return the array and the label (or None) of a serialised RecordProto, or of a Record that contains one.

    Pixels become uint8 and ``data`` float32, in the message's shape; ``encoded`` image files become (C, H, W).

    Raises:
        UserError: ``value`` is not such a message, or its shape does not match its data.
    """
    record = _parsed(RecordProto, value, where)
    if record.HasField("image"):
        record = record.image
    label = record.label if record.HasField("label") else None
    if encoded:
        return decode_image(record.pixel, where), label
    data = np.array(record.data, np.float32) if record.data else np.frombuffer(record.pixel, np.uint8)
    return _shaped(data, tuple(record.shape) or data.shape, where), label


def decode_datum(value: bytes, where: str, encoded: bool = False) -> tuple[np.ndarray, int | None] | None:
    """Return the array (channels, height, width) and the label of a CaffeDatum; None for another message."""
    datum = _parsed(CaffeDatum, value, where)
    if not datum.HasField("width"):  # in a RecordProto field 3 has another wire type
        return None
    label = datum.label if datum.HasField("label") else None
    if encoded or datum.encoded:
        return decode_image(datum.data, where), label
    data = np.array(datum.float_data, np.float32) if datum.float_data else np.frombuffer(datum.data, np.uint8)
    return _shaped(data, (datum.channels, datum.height, datum.width), where), label


def decode_image(encoded: bytes, where: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the pixels of an image file, uint8 (3, height, width) in red, green, blue, resized to ``size`` if given.

    Raises:
        UserError: the bytes are not an image, or Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UserError("reading image files needs Pillow: pip install pillow") from None
    try:
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
    except UnidentifiedImageError:  # its text has the address of an object
        raise UserError(f"{where} cannot be read as an image: Pillow knows no format like it; remove it") from None
    except MemoryError:
        raise
    except Exception as error:  # of Pillow's decoders: any class
        raise UserError(f"{where} cannot be read as an image: {error!s:.200}; remove it, or copy it again") from None
    if size is not None:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _parsed(kind: Any, value: bytes, where: str) -> Any:
    try:
        return kind.FromString(value)
    except message.DecodeError:
        raise UserError(f"{where} is not a {kind.DESCRIPTOR.name} message") from None


def _shaped(data: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    size = np.prod(shape, dtype=np.int64)
    if not data.size or data.size != size:
        raise UserError(f"{where} has {data.size} values, but its shape {shape} has {size}")
    return data.reshape(shape)
