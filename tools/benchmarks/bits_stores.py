"""The records that the jobs of ``bits_jobs`` read: images, vectors, texts and sentences, from one seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dsinga.data import write_store

COUNTS = [90, 60, 40, *[5] * 97]
"""How often each word of the text occurs."""

VOCABULARIES = {"words": 40, "shapes": 9, "prefixes": 12, "suffixes": 12}
"""How many codes each store of the tagged sentences has."""

SENTENCES = ("a1 b2 c3", "b1 a4", "c5 c5 a2 b3")
"""Sentences to translate."""


def write_stores(folder: Path) -> None:
    """Write the records that the jobs read."""
    rng = np.random.default_rng(7)
    for name, size, train in (("small", 16, 300), ("large", 32, 96)):
        write_images(folder / name, size, train, rng)
    spoilt = rng.uniform(0, 255, (90, 3, 16, 16)).astype(np.float32)
    spoilt[[35, 70]] = np.nan
    write_store(folder / "small" / "spoilt.zarr", [(spoilt, rng.integers(0, 10, 90))])
    write_store(folder / "small" / "words.zarr", [(rng.integers(0, 30, (60, 4), np.uint8), rng.integers(0, 5, 60))])
    for part, count in (("train", 300), ("test", 90)):
        bits = rng.random((count, 64)) < rng.random((4, 64))[rng.integers(0, 4, count)]
        write_store(folder / "binary" / f"{part}_data.zarr", [(np.where(bits, 255, 0).astype(np.uint8), None)])
    write_pairs(folder / "pairs", rng)
    write_sequences(folder, rng)
    write_translations(folder / "pairs-of-words", rng)


def write_images(folder: Path, size: int, train: int, rng: np.random.Generator) -> None:
    """Write images of ten classes, each a prototype with noise, and the mean image."""
    prototypes = rng.uniform(0, 255, (10, 3, size, size))
    for part, count in (("train", train), ("test", 90)):
        labels = rng.integers(0, 10, count)
        images = np.clip(prototypes[labels] + rng.normal(0, 40, (count, 3, size, size)), 0, 255)
        write_store(folder / f"{part}_data.zarr", [(images.astype(np.uint8), labels)])
    write_store(folder / "image_mean.zarr", [(prototypes.mean(axis=0, dtype=np.float32)[None], None)])


def write_pairs(folder: Path, rng: np.random.Generator) -> None:
    """Write pairs of vectors of four classes, for the images and the texts of the multi-modal net."""
    centres = {"I": rng.normal(size=(4, 12)), "T": rng.normal(size=(4, 5))}
    for part, count in (("tr", 120), ("te", 60)):
        labels = rng.integers(0, 4, count)
        for letter, centre in centres.items():
            noisy = centre[labels] + rng.normal(size=(count, centre.shape[1])) * 0.6
            write_store(folder / f"{letter}_{part}.zarr", [(noisy.astype(np.float32), labels)])


def write_sequences(folder: Path, rng: np.random.Generator) -> None:
    """Write texts of characters and of words, and sentences with a tag for each word."""
    for part, count in (("train", 900), ("test", 200)):
        codes = (np.cumsum(rng.integers(1, 4, count)) % 12).astype(np.uint8)
        write_store(folder / "text" / f"{part}_data.zarr", [(codes, None)], vocabulary=list("abcdefghijkl"))
    vocabulary = [f"word{code}" for code in range(len(COUNTS))]
    for part, count in (("train", 900), ("valid", 200), ("test", 200)):
        words = rng.choice(len(COUNTS), count, p=np.array(COUNTS) / sum(COUNTS)).astype(np.int32)
        write_store(folder / "text" / f"{part}_text.zarr", [(words, None)], vocabulary=vocabulary)
    for part, count in (("train", 120), ("val", 40), ("test", 40)):
        after_end = np.arange(9) >= rng.integers(2, 10, count)[:, None]
        tags = np.where(after_end, -1, rng.integers(0, 5, (count, 9)))
        for name, size in VOCABULARIES.items():
            codes = np.where(after_end, -1, rng.integers(0, size, (count, 9))).astype(np.int32)
            write_store(folder / "tagged" / part / f"{name}.zarr", [(codes, tags)])


def write_translations(folder: Path, rng: np.random.Generator) -> None:
    """Write sentences of words such as b2, and their translations, whose words are in the reverse order, as 2b."""
    words = [f"{letter}{digit}" for letter in "abc" for digit in range(1, 6)]
    vocabularies = {
        "source": ["<unk>", *words],
        "target": ["<unk>", "<s>", "</s>", *(word[::-1] for word in words)],
    }
    for part, count in (("train", 120), ("val", 20), ("test", 20)):
        lengths, rows = rng.integers(2, 6, count), {"source": [], "target": [], "labels": []}
        for length in lengths:
            codes = rng.integers(0, len(words), length)
            rows["source"].append([*(codes + 1)])
            rows["target"].append([1, *(codes[::-1] + 3)])
            rows["labels"].append([*(codes[::-1] + 3), 2])
        source, target, labels = (
            np.array([[*row, *[-1] * (6 - len(row))] for row in rows[name]], np.int32) for name in rows
        )
        for name, data, following in (("source", source, None), ("target", target, labels)):
            write_store(folder / part / f"{name}.zarr", [(data, following)], vocabulary=vocabularies[name])
