"""A made table as a folder of parquet files, of any size: numbers, whole numbers, categories, dates, gaps and a target.

``late`` depends on numbers (not in lines: a sine, a product, a step), on categories of 12, 50 and 400, on the hour of a
date and on whether a number is missing, and has noise. File ``n`` of a seed is the same whatever else is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS = 131_072  # of a row group, some 19 MB in a file
GROUPS = 5  # row groups of a file
FILE_ROWS = GROUPS * GROUP_ROWS
FILE_BYTES = 93_600_000
NUMBERS = [f"x{number:02d}" for number in range(16)]
CATEGORIES = {"colour": 4, "kind": 12, "carrier": 50, "city": 400, "product": 5000}
GAPS = {"x04": 0.1, "x05": 0.1, "paid": 0.2, "city": 0.02}  # shares of missing values
TARGET = "late"


def names_of(column: str) -> list[str]:
    """Return the categories of a column, in order."""
    return [f"{column}-{number}" for number in range(CATEGORIES[column])]


def effects(column: str, size: float) -> np.ndarray:
    """Return what each category of a column adds to the score, the same for all seeds."""
    seed = [*CATEGORIES].index(column)
    return (size * np.random.default_rng(seed).standard_normal(CATEGORIES[column])).astype(np.float32)


def rows(seed: int, number: int, count: int = FILE_ROWS) -> pa.Table:
    """Return the rows of file ``number`` as an Arrow table."""
    rng = np.random.default_rng([seed, number])
    x: dict[str, Any] = {name: rng.standard_normal(count) for name in NUMBERS}
    codes = {name: (size * rng.random(count, np.float32) ** 1.5).astype(np.int32) for name, size in CATEGORIES.items()}
    hours, late_hours = rng.integers(0, 3 * 365 * 24, count), rng.exponential(40, count).astype(np.int64)
    missing = {name: rng.random(count, np.float32) < share for name, share in GAPS.items()}
    hour = hours % 24
    score = np.sin(2 * x["x00"]) + 0.7 * x["x01"] * x["x02"] + 0.8 * (x["x03"] > 0.5) + 0.5 * x["x06"]
    score += effects("carrier", 0.6)[codes["carrier"]] + effects("city", 0.5)[codes["city"]]
    score += effects("kind", 0.4)[codes["kind"]] + 0.6 * np.sin(hour * (2 * np.pi / 24)) + 0.7 * missing["x04"] - 1
    late = score + rng.logistic(0, 0.6, count) > 0
    for name in NUMBERS[12:]:
        x[name] = np.exp(x[name])
    columns: dict[str, Any] = {name: x[name].astype(np.float64 if name < "x12" else np.float32) for name in NUMBERS}
    columns["amount"] = np.round(np.exp(rng.standard_normal(count)) * 40, 2)
    columns["customer"] = rng.integers(0, 10**9, count)
    columns["age"], columns["items"] = rng.integers(18, 95, count, np.int32), rng.poisson(3, count)
    columns["member"] = rng.random(count, np.float32) < 0.3
    begin = np.datetime64("2023-01-01", "us")
    columns["bought"] = begin + hours.astype("m8[h]") + rng.integers(0, 3600, count).astype("m8[s]")
    columns["paid"] = columns["bought"] + late_hours.astype("m8[h]")
    arrays = {name: pa.array(array, mask=missing.get(name)) for name, array in columns.items()}
    for name in CATEGORIES:
        arrays[name] = pa.DictionaryArray.from_arrays(pa.array(codes[name], mask=missing.get(name)), names_of(name))
    arrays[TARGET] = pa.array(late.astype(np.int8))
    return pa.table(arrays)


def write_file(folder: Path, seed: int, number: int, count: int = FILE_ROWS, group_rows: int = GROUP_ROWS) -> int:
    """Write a file of the table, in which categories are strings; return its bytes."""
    path = folder / f"part-{number:04d}.parquet"
    table = rows(seed, number, count)
    fields = [pa.field(field.name, pa.string()) if field.name in CATEGORIES else field for field in table.schema]
    coded = [*CATEGORIES, "age", "items"]
    pq.write_table(table.cast(pa.schema(fields)), path, row_group_size=group_rows, use_dictionary=coded)
    return path.stat().st_size


def write(folder: Path, gigabytes: float, seed: int = 0, group_rows: int = GROUP_ROWS) -> int:
    """Write files of at least so many gigabytes, in two processes; return their bytes.

    Files of a small table have fewer rows, so that there are four files in any case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = max(4, round(gigabytes * 1e9 / FILE_BYTES))
    length = min(FILE_ROWS, round(gigabytes * 1e9 / FILE_BYTES * FILE_ROWS / count))
    with ProcessPoolExecutor(2) as processes:
        sizes: Iterable[int] = processes.map(
            write_file, *zip(*((folder, seed, number, length, group_rows) for number in range(count)), strict=True)
        )
        return sum(sizes)
