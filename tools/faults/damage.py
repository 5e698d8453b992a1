"""Damages files: bytes flipped, cut, repeated, filled, exchanged, removed."""

from __future__ import annotations

import os
import random as random_module
import shutil
from pathlib import Path


def files_of(folder: Path) -> list[Path]:
    """Return all files under ``folder``, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip_bit(random: random_module.Random, content: bytes) -> bytes:
    """Return ``content`` with one bit changed."""
    if not content:
        return b"\x01"
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]


def cut(random: random_module.Random, content: bytes) -> bytes:
    """Return the begin of ``content``."""
    return content[: random.randrange(max(len(content), 1))]


def zero_range(random: random_module.Random, content: bytes) -> bytes:
    """Return ``content`` with a range of zeros, as a disk may leave after a crash."""
    start = random.randrange(max(len(content), 1))
    stop = min(len(content), start + random.randrange(1, 4097))
    return content[:start] + bytes(stop - start) + content[stop:]


def repeat_range(random: random_module.Random, content: bytes) -> bytes:
    """Return ``content`` with a range written twice."""
    start = random.randrange(max(len(content), 1))
    stop = min(len(content), start + random.randrange(1, 65))
    return content[:stop] + content[start:stop] + content[stop:]


def fill_with_noise(random: random_module.Random, content: bytes) -> bytes:
    """Return random bytes in place of a range of ``content``."""
    start = random.randrange(max(len(content), 1))
    stop = min(len(content), start + random.randrange(1, 257))
    return content[:start] + random.randbytes(stop - start) + content[stop:]


BYTE_DAMAGES = (flip_bit, cut, zero_range, repeat_range, fill_with_noise)


def damage_bytes(random: random_module.Random, path: Path) -> str:
    """Damage the contents of a file; return what was done."""
    damage = random.choice(BYTE_DAMAGES)
    content = path.read_bytes()
    damaged = damage(random, content)
    path.write_bytes(damaged)
    return f"{damage.__name__} {path.name}" + (" (no change)" if damaged == content else "")


def damage_source(random: random_module.Random, folder: Path, share_of_bytes: float) -> str:
    """Damage the bytes of a file in a folder, or in other cases an entry of the folder; return what was done."""
    if random.random() < share_of_bytes:
        return damage_bytes(random, random.choice(files_of(folder)))
    return damage_entry(random, folder)


def damage_entry(random: random_module.Random, folder: Path) -> str:
    """Remove, exchange or empty a file, or replace it by a folder, link or pipe; return what was done."""
    files = files_of(folder)
    path = random.choice(files)
    kind = random.choice(
        ("remove", "empty", "exchange", "copy over", "folder", "pipe", "dangling link", "link to itself")
    )
    if kind == "remove":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind in ("exchange", "copy over"):
        target = random.choice(files)
        content, others = path.read_bytes(), target.read_bytes()
        path.write_bytes(others)
        if kind == "exchange":
            target.write_bytes(content)
        return f"{kind} {path.relative_to(folder)} {target.relative_to(folder)}"
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            os.symlink(path.name if kind == "link to itself" else "absent", path)
    return f"{kind} {path.relative_to(folder)}"


def copy_tree(source: Path, destination: Path) -> None:
    """Copy a folder with its contents, merged into ``destination`` where that exists."""
    shutil.copytree(source, destination, dirs_exist_ok=True)
