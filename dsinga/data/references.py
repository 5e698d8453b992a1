"""References to the chunks of a zarr store in other files: the JSON that kerchunk and VirtualiZarr write.

It may come from elsewhere, so nothing in it is rendered or executed, and what it names is read only where a store
would be: beside it, at web servers and in object storage, and in the folders that the user's environment names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.core import split_protocol, strip_protocol  # type: ignore[import-untyped]
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper  # type: ignore[import-untyped]
from fsspec.implementations.reference import ReferenceFileSystem  # type: ignore[import-untyped]

from dsinga.base.regular_files import METADATA_BYTES, TABLE_BYTES, open_regular, parse_json, read_regular

VARIABLE = "DSINGA_REFERENCES"  # of the environment: further folders with files that references may name
REMOTE = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
LONGEST = 4096  # characters of a path or URL
TEMPLATE = re.compile(r"{{\s*(\w+)\s*}}")
NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class References(ReferenceFileSystem):  # type: ignore[misc]
    """The file system of the chunks that the references in a file lead to.

    Raises OSError, or ValueError with what is wrong, for a file that has none, or that names what is not to be read.
    """

    def __init__(self, location: str):
        references, files = _read(location), LocalFiles(_folder(location))
        systems: dict[str | None, Any] = {None: AsyncFileSystemWrapper(files, asynchronous=True)}
        for url in (part[0] for part in references.values() if isinstance(part, list)):
            protocol = split_protocol(url)[0]
            if "::" in url or protocol not in (None, *REMOTE):
                raise ValueError(f"references lead to files, {', '.join(REMOTE)}, not to {url}")
            if protocol is None:
                files.check(url, os.path.normpath(url))
            elif protocol not in systems:
                system = fsspec.filesystem(protocol, asynchronous=True)
                asynchronous = system.async_impl
                systems[protocol] = system if asynchronous else AsyncFileSystemWrapper(system, asynchronous=True)
        super().__init__(references, fs=systems, asynchronous=True)

    async def _exists(self, path: str, **options: Any) -> bool:
        return path in self.references

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Return the bytes of a reference; raise OSError where there are none, or fewer or more than it says."""
        part, first, last = self._cat_common(path, start, end)
        if isinstance(part, bytes):
            return part[start:end]
        try:
            data: bytes = await self.fss[split_protocol(part)[0]]._cat_file(part, start=first, end=last)
        except NOT_THERE:  # for which zarr takes the fill value
            raise OSError(f"its reference leads to {part}, which is not there") from None
        if first is not None and last is not None and len(data) != last - first:
            raise OSError(f"its reference leads to bytes {first} to {last} of {part}, of which {len(data)} were read")
        return data


class LocalFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """The regular files below a folder, and below those that the environment names."""

    cachable = False

    def __init__(self, folder: str):
        super().__init__()
        folders = [each for each in (folder, *os.environ.get(VARIABLE, "").split(os.pathsep)) if "://" not in each]
        paths = [path for each in folders if each for path in (os.path.abspath(each), os.path.realpath(each))]
        self.folders = tuple(os.path.join(path, "") for path in paths)

    def check(self, path: str, real: str) -> None:
        """Raise ValueError unless a path is below the folders."""
        if not real.startswith(self.folders):
            raise ValueError(
                f"a reference leads to {path}, outside of the folder of the file of references; if that is meant, "
                f"name the folder of the data by {VARIABLE}=FOLDER in the environment, also that of workers"
            )

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Return bytes of a file."""
        self.check(path, os.path.realpath(path))
        with open_regular(path, None if end else TABLE_BYTES) as file:
            file.seek(start or 0)
            return file.read(max(0, min(end or TABLE_BYTES, os.fstat(file.fileno()).st_size) - (start or 0)))


def _folder(location: str) -> str:
    return location.rpartition("/")[0] if "://" in location else os.path.dirname(os.path.abspath(location))


def _read(location: str) -> dict[str, Any]:
    """Return the references in a file, by key: metadata as text, else a list of a URL or path, and perhaps a range."""
    if "://" in location:
        with fsspec.open(location) as file:
            data = file.read(METADATA_BYTES + 1)
        if len(data) > METADATA_BYTES:
            raise ValueError(f"it has more than {METADATA_BYTES:,} bytes")
    else:
        data = read_regular(location, METADATA_BYTES)
    content = parse_json(data)
    if not isinstance(content, dict) or content.get("version", 1) != 1:
        raise ValueError("it is no JSON object, or one of another version than 1")
    content = content if "version" in content else {"refs": content}
    if content.get("gen"):
        raise ValueError("generated references ('gen') are not read; write each of them out")
    refs, templates = content.get("refs"), content.get("templates") or {}
    if not isinstance(refs, dict) or not isinstance(templates, dict):
        raise ValueError("its 'refs' or 'templates' are no JSON object")
    if not all(isinstance(text, str) and len(text) <= LONGEST and "{" not in text for text in templates.values()):
        raise ValueError(f"its templates are not texts of up to {LONGEST} characters without braces")
    folder = _folder(location)
    return {key: _reference(key, value, templates, folder) for key, value in refs.items()}


def _reference(key: str, value: Any, templates: Mapping[str, str], folder: str) -> Any:
    """Return a reference with its template filled in, and its path absolute; ValueError says what is wrong with it."""
    if isinstance(value, (str, dict)):
        return value if isinstance(value, str) else json.dumps(value)
    url, *numbers = value if isinstance(value, list) and len(value) in (1, 3) else (None,)
    if not isinstance(url, str) or not all(isinstance(number, int) and 0 <= number < 1 << 62 for number in numbers):
        raise ValueError(f"the reference {key!r:.200} is not a text, [URL] or [URL, offset, length]")
    if "{" in url and len(url) <= LONGEST:
        url = TEMPLATE.sub(lambda name: templates.get(name[1], name[0]), url)
    if len(url) > LONGEST or "{{" in url or "{%" in url:
        raise ValueError(
            f"the reference {key!r:.200} has a path of more than {LONGEST} characters, an expression, or a template "
            "that the file does not define"
        )
    url = strip_protocol(url) if url.startswith(("file://", "local://")) else url
    if "://" not in url and ("://" not in folder or ".." not in url.split("/")):
        url = os.path.join(folder, url)
    return [url, *numbers]
