"""Opens, lists and finds stores at paths and fsspec URLs.

A path may lead to references: JSON of kerchunk or VirtualiZarr that names the chunks of a zarr store in other files.
Such a file is not trusted: nothing in it is rendered or executed. Its chunks are read only next to it, at web servers,
in object storage, and in folders that the user's environment names.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec  # type: ignore[import-untyped]
import zarr
from fsspec.core import split_protocol, strip_protocol  # type: ignore[import-untyped]
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper  # type: ignore[import-untyped]
from fsspec.implementations.reference import ReferenceFileSystem  # type: ignore[import-untyped]
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

from dsinga.base.advice import option
from dsinga.base.errors import PathNotFound, UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import nearest, nearest_or_listed
from dsinga.base.regular_files import METADATA_BYTES, TABLE_BYTES, name_fault, open_regular, parse_json, read_regular
from dsinga.data.locations import absolute, file_system, is_url, join
from dsinga.data.stores.checked_files import ReadingStore, is_transient, retry

ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def exists(location: str) -> bool:
    """Whether there is a file or folder at ``location``."""
    if is_url(location):
        filesystem, path = file_system(location)
        try:
            return retry(lambda: _exists(filesystem, path), location)
        except Exception as error:  # refusals of a server; each package has classes of its own
            raise UserError(
                redact(f"{location} cannot be reached: {type(error).__name__}: {error}", location)
            ) from None
    return os.path.exists(location)


def is_file(location: str) -> bool:
    """Whether there is a file, and no folder, at ``location``."""
    return exists(location) if is_url(location) else os.path.isfile(location)


def has_zarr_metadata(location: str) -> bool:
    """Whether there is a zarr array or group at ``location``, format 2 or 3."""
    return is_references(location) or any(exists(join(location, name)) for name in ZARR_METADATA)


def zarr_store(location: str, read_only: bool) -> Store:
    """Return the object through which zarr reads or writes a store at ``location``."""
    store: Store
    if is_references(location):
        store = _reference_store(location)
    elif not is_url(location):
        store = LocalStore(location, read_only=read_only)
    else:
        file_system(location)  # raises a clearer error than zarr if the protocol is unknown or its package is missing
        is_s3 = location.startswith(("s3:", "s3a:"))  # s3fs asks for a size before each file that it reads in parts
        store = FsspecStore.from_url(location, {"max_concurrency": 1} if is_s3 else None, read_only=read_only)
    return ReadingStore(store, location, not isinstance(store, LocalStore)) if read_only else store


def is_references(location: str) -> bool:
    """Whether a location is a JSON file that refers to zarr chunks in other files, as kerchunk's."""
    return location.endswith(".json") and not location.endswith("zarr.json") and is_file(location)


def _reference_store(location: str) -> Store:
    try:
        return FsspecStore(References(location), read_only=True)
    except Exception as error:  # of JSON, of the file, of packages for URLs: any class
        fault = getattr(error, "strerror", None) or f"{error}"
        raise UserError(redact(f"{location} has no references that can be read: {fault}", location)) from None


def _exists(filesystem: Any, path: str) -> bool:
    if "http" not in filesystem.protocol:
        return bool(filesystem.exists(path))
    try:  # fsspec's own method takes every error of a web server for a missing file
        filesystem.cat_file(path, start=0, end=1)
    except FileNotFoundError:
        return False
    except Exception as error:
        status = getattr(error, "status", None)
        if not isinstance(status, int) or is_transient(error):
            raise
        return status == 416  # an empty file has no first byte
    return True


# Stores that importers such as mnist, sentences and pairs write into a folder, which is their destination.
STORES_OF_A_FOLDER = (
    "train_data.zarr", "test_data.zarr", "source.zarr", "target.zarr", "words.zarr", "image_mean.zarr",
)  # fmt: skip


def import_command(location: str) -> str:
    """Return the ``dsinga data import`` command that would create the store at ``location``, for messages."""
    folder, name = os.path.split(location)
    folder_hint = f" (for mnist, sentences and other kinds that write several stores: {folder or '.'})"
    return f"dsinga data import KIND SOURCE {location}{folder_hint if name in STORES_OF_A_FOLDER else ''}"


MOST_NAMES = 1000  # of a folder that are compared with that of a missing file


def resolve(path: str | os.PathLike[str], roots: Sequence[str] = (), remedy: str = "") -> str:
    """Find the file, folder or store that a user names ``path``; return its absolute path or URL.

    A relative path is looked up in the working directory, then under each of ``roots`` (folders or URLs). A store
    imported from it, ``train_data.zarr`` for ``train_data.bin``, is also found. A pattern of files is returned
    unchanged.

    Raises:
        PathNotFound: ``path`` is in none of these places, which the message lists.
        UserError: the zarr group has no such array, or the path is an archive.
    """
    text = os.path.expanduser(os.fspath(path))
    if not text:
        raise UserError("the path of a store is empty; give a path or a URL")
    if text.endswith(".zip"):
        raise UserError(f"{text} is a zip archive, which is not read in place; unpack it first, and give its folder")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise UserError(name_fault(error)) from None
    fixed = is_url(text) or os.path.isabs(text) or text.startswith(("file://", "local://"))
    places = [absolute(text)] if fixed else [absolute(join(root, text)) for root in ("", *roots)]
    for place in dict.fromkeys(places):
        if "*" in place and (is_url(place) or glob.glob(place)):
            return place
        for candidate in (place, imported_name(place)):
            if exists(candidate) or (is_url(candidate) and has_zarr_metadata(candidate)):  # a web server has no folders
                return candidate
    for place in dict.fromkeys(places):
        _check_group(place)
    lines = "".join(f"\n  {place}" for place in dict.fromkeys(places))
    store = imported_name(text)
    hint = next(filter(None, map(_nearest_file, places)), "")
    if parts := re.match(r"([a-z]\w+):/(?!/)", text):  # as pathlib writes a URL
        hint = f"; did you mean the URL {parts[1]}://{text[parts.end() :]}?"
    if not roots:  # not a path of a job
        destination = store if os.path.splitext(text)[1] else text
        hint = f"{hint} Else" if hint else ";"
        remedy = remedy or f"make a store with: {import_command(destination)}"
        raise PathNotFound(f"{places[0]} was not found{hint} {remedy}")
    beside = f" (nor {os.path.basename(store)} beside it)" if store != text else ""
    raise PathNotFound(
        f"{text} was not found{beside}; looked for{lines}\n{f'{hint[2:]} Else ' if hint else ''}"
        f"give the folder that contains the path with {option('data_root', 'FOLDER')}, or make a store with: "
        "dsinga data import KIND SOURCE DESTINATION"
    )


def _nearest_file(place: str) -> str:
    folder, name = os.path.split(place)
    while not is_url(place) and not os.path.isdir(folder):  # a folder is missing, too
        folder, name = os.path.split(folder)
    try:
        names = itertools.islice(os.listdir(folder), MOST_NAMES)
    except OSError:  # a URL, or a folder that cannot be read
        return ""
    stem, suffix = os.path.splitext(name)
    of_kind = [known for known in names if os.path.splitext(known)[1] in (suffix, ".zarr") or not suffix]
    return nearest(name, [known for known in of_kind if nearest(stem, [os.path.splitext(known)[0]])])


def _check_group(place: str) -> None:
    folder, name = os.path.split(place)
    if has_zarr_metadata(folder):
        try:
            arrays = sorted(zarr.open_group(store=zarr_store(folder, read_only=True), mode="r").array_keys())
        except Exception:  # an array, damaged metadata, refusals of a server: the message is that of any missing path
            return
        raise UserError(f"{folder} has no array {name!r}{nearest_or_listed(name, arrays, 'its arrays are')}")


def imported_name(location: str) -> str:
    """Return where an import of ``location`` is stored: the path with the suffix ``.zarr``."""
    stem, suffix = os.path.splitext(location)
    return location if suffix == ".zarr" else f"{stem}.zarr"


VARIABLE = "DSINGA_REFERENCES"  # of the environment: further folders with files that references may name
REMOTE = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
LONGEST = 4096  # characters of a path or URL
TEMPLATE = re.compile(r"{{\s*(\w+)\s*}}")
NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class References(ReferenceFileSystem):  # type: ignore[misc]
    """Opens a zarr store with chunks in other files, named by a file of references.

    Raises OSError or ValueError for references to files that may not be read.
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
    """The local files that references may name: below their folder, and below folders from the environment."""

    cachable = False

    def __init__(self, folder: str):
        super().__init__()
        folders = [each for each in (folder, *os.environ.get(VARIABLE, "").split(os.pathsep)) if "://" not in each]
        paths = [path for each in folders if each for path in (os.path.abspath(each), os.path.realpath(each))]
        self.folders = tuple(os.path.join(path, "") for path in paths)

    def check(self, path: str, real: str) -> None:
        """Refuse a file outside the allowed folders by a ValueError."""
        if not real.startswith(self.folders):
            raise ValueError(
                f"a reference leads to {path}, outside of the folder of the file of references; if that is meant, "
                f"name the folder of the data by {VARIABLE}=FOLDER in the environment, also that of workers"
            )

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Return the bytes of a file, or a range of them."""
        self.check(path, os.path.realpath(path))
        with open_regular(path, None if end else TABLE_BYTES) as file:
            file.seek(start or 0)
            return file.read(max(0, min(end or TABLE_BYTES, os.fstat(file.fileno()).st_size) - (start or 0)))


def _folder(location: str) -> str:
    return location.rpartition("/")[0] if "://" in location else os.path.dirname(os.path.abspath(location))


def _read(location: str) -> dict[str, Any]:
    """Return the references in a file by key: metadata as text, else [URL or path, optional range]."""
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
