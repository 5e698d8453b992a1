"""The importer of SINGA's kvfiles: sequences of key-value pairs whose values are RecordProto messages.

Each pair is the key's size (8 bytes, native endian), the key, the value's size, the value; there is no header.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from dsinga.data.importers.files import naming_errors
from dsinga.data.importers.protos import decode_record
from dsinga.data.importers.records import Record, StoreContents, stack
from dsinga.errors import UserError
from dsinga.regular_files import open_regular

_size = struct.Struct("=Q")


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
