"""The importer of folders with image files, a subfolder for each class."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence

import numpy as np

from dsinga.addons.importers.batches import Record, StoreContents, naming_errors, read_lines, stack
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.regular_files import TABLE_BYTES, read_regular

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff")


@register("importer", "imagefolder")
def imagefolder(source: str, size: int | Sequence[int] = ()) -> dict[str, StoreContents]:
    """Read images as uint8 (3, height, width), from a folder with a subfolder for each class, or from a list file.

    Classes are the sorted names of the subfolders; images are stored shuffled, always in the same order. A list file
    has a line "path label" for each image, with paths relative to the file; its order is kept.

    Args:
        source: the folder or the list file.
        size: (height, width), or one number for both, to resize images to; without it all must have the same size.
    """
    target = _target_size(size)
    classes: tuple[str, ...] = ()
    if os.path.isdir(source):
        classes, images = _images_of_folder(source)
    else:
        images = _images_of_list(source)
    if not images:
        raise UserError(
            f"{source} has no images; give a folder with CLASS/IMAGE files, or a list file with lines 'path label', or "
            "dsinga.table(path) of files of parquet"
        )
    return {"": StoreContents(stack(_read(images, target)), len(images), classes)}


def _target_size(size: int | Sequence[int]) -> tuple[int, int] | None:
    numbers = [size, size] if isinstance(size, int) else [*size]
    if not numbers:
        return None
    if len(numbers) != 2 or min(numbers) < 1:
        raise UserError(f"size must be a height and a width, not {size}")
    return numbers[0], numbers[1]


def _images_of_folder(folder: str) -> tuple[tuple[str, ...], list[tuple[str, int]]]:
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


def _images_of_list(path: str) -> list[tuple[str, int]]:
    images = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            image, label = line.rsplit(maxsplit=1)
            images.append((os.path.join(os.path.dirname(path), image), int(label)))
        except ValueError:
            raise UserError(f"{path}:{number}: a line must be 'path label', with an integer label") from None
    return images


def _read(images: list[tuple[str, int]], size: tuple[int, int] | None) -> Iterator[Record]:
    for path, label in images:
        with naming_errors(path):
            encoded = read_regular(path, TABLE_BYTES)
        yield Record(decode_image(encoded, path, size), label, path)


def decode_image(encoded: bytes, where: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Decode an image file to pixels, uint8 (3, height, width) in red, green, blue, resized to ``size`` if given."""
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
