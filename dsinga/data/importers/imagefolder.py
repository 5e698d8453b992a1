"""Folders of image files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from dsinga.data.importers.files import naming_errors
from dsinga.data.importers.protos import decode_image
from dsinga.data.importers.records import Record, StoreContents, stack
from dsinga.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff")


def imagefolder(source: str, size: int | Sequence[int] = ()) -> dict[str, StoreContents]:
    """Read images as uint8 (3, height, width): a folder with one folder of images for each class, or a list file.

    The classes are the names of the folders, sorted; the images are stored in an order that mixes them, always the
    same. A list file has a line "path label" for each image, paths being relative to the file; its order is kept.

    Args:
        source: the folder or the list file.
        size: (height, width), or one number for both, to which images are resized; without it all must be alike.
    """
    wanted = _size(size)
    classes: tuple[str, ...] = ()
    if os.path.isdir(source):
        classes, images = _walk(source)
    else:
        images = _listed(source)
    if not images:
        raise UserError(f"{source} has no images; wanted: SOURCE/CLASS/IMAGE, or a list file of lines 'path label'")
    return {"": StoreContents(stack(_read(images, wanted)), len(images), classes)}


def _size(size: int | Sequence[int]) -> tuple[int, int] | None:
    wanted = [size, size] if isinstance(size, int) else [*size]
    if not wanted:
        return None
    if len(wanted) != 2 or min(wanted) < 1:
        raise UserError(f"size is a height and a width, not {size}")
    return wanted[0], wanted[1]


def _walk(folder: str) -> tuple[tuple[str, ...], list[tuple[str, int]]]:
    with os.scandir(folder) as entries:
        classes = tuple(sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")))
    images = [
        (os.path.join(folder, name, image), label)
        for label, name in enumerate(classes)
        for image in sorted(os.listdir(os.path.join(folder, name)))
        if image.lower().endswith(SUFFIXES)
    ]
    order = np.argsort(np.random.Philox(key=0).random_raw(len(images)), kind="stable")
    return classes, [images[index] for index in order]


def _listed(path: str) -> list[tuple[str, int]]:
    images = []
    with naming_errors(path), open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                image, label = line.rsplit(maxsplit=1)
                images.append((os.path.join(os.path.dirname(path), image), int(label)))
            except ValueError:
                raise UserError(f"{path}:{number}: a line is 'path label', the label an integer") from None
    return images


def _read(images: list[tuple[str, int]], size: tuple[int, int] | None) -> Iterator[Record]:
    for path, label in images:
        with naming_errors(path), open(path, "rb") as file:
            encoded = file.read()
        yield Record(decode_image(encoded, path, size), label, path)
