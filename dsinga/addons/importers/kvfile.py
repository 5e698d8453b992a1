"""The importer of SINGA's kvfiles: sequences of key-value pairs with RecordProto messages as values.

A pair is the key's size (8 bytes, native endian), the key, the value's size, the value; there is no header.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.addons.importers.batches import Record, StoreContents, naming_errors, stack
from dsinga.addons.importers.imagefolder import decode_image
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.regular_files import open_regular
from dsinga.checkpoint.singa import decode, message_class

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
    """Read the records of a kvfile in order."""
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


# A SINGA Record contains a RecordProto in its field 5. The only field number that both use is 1, and a Record's field 1
# (its type) is not needed. So one message class serves for both.
RecordProto = message_class(
    RecordProto={
        "shape": (1, "int32", True),
        "label": (2, "int32", False),
        "pixel": (3, "bytes", False),
        "data": (4, "float", True),
        "image": (5, "RecordProto", False),
    }
)
CaffeDatum = message_class(
    CaffeDatum={
        "channels": (1, "int32", False),
        "height": (2, "int32", False),
        "width": (3, "int32", False),
        "data": (4, "bytes", False),
        "label": (5, "int32", False),
        "float_data": (6, "float", True),
        "encoded": (7, "bool", False),
    }
)


def decode_record(value: bytes, where: str, encoded: bool = False) -> tuple[np.ndarray, int | None]:
    """Decode a serialised RecordProto, or a Record that contains one, to its array and label (or None).

    Pixels become uint8 and ``data`` float32, in the message's shape; ``encoded`` image files become (C, H, W).
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
    """Decode a CaffeDatum to its array (channels, height, width) and label; return None for other messages."""
    datum = _parsed(CaffeDatum, value, where)
    if not datum.HasField("width"):  # in a RecordProto field 3 has another wire type
        return None
    label = datum.label if datum.HasField("label") else None
    if encoded or datum.encoded:
        return decode_image(datum.data, where), label
    data = np.array(datum.float_data, np.float32) if datum.float_data else np.frombuffer(datum.data, np.uint8)
    return _shaped(data, (datum.channels, datum.height, datum.width), where), label


def _parsed(kind: Any, value: bytes, where: str) -> Any:
    try:
        return decode(kind, value)
    except ValueError:
        raise UserError(f"{where} is not a {kind.DESCRIPTOR.name} message") from None


def _shaped(data: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    size = np.prod(shape, dtype=np.int64)
    if not data.size or data.size != size:
        raise UserError(f"{where} has {data.size} values, but its shape {shape} has {size}")
    return data.reshape(shape)
