"""Damaged stores: record stores with labels, mean and standard deviation; earlier stores; foreign zarr.

Record stores must train to the right bits or be refused, whatever the damage. Stores of an earlier version and the
metadata of foreign zarr have no checksums, so that some damages cannot be seen: there only tracebacks and hangs count.
Damaged chunks of foreign zarr count again: those here have codecs with checksums.
"""

from __future__ import annotations

import json
import os
import random as random_module
import shutil
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from tests.support.old_stores import remove_checksums
from tools.faults.damage import copy_tree, damage_bytes, damage_entry, files_of
from tools.faults.damaged_json import damage_json
from tools.faults.verdicts import WRONG, run_dsinga, say_damage

SHAPE = (3, 64, 64)  # 85 records in a chunk
RECORDS, BATCH = 250, 50
KINDS = ("records", "records", "records", "records", "earlier", "zarr2", "zarr3")
JOB = """
name: "damaged"
train_steps: {steps}
checkpoint_freq: {steps}
seed: 3
train_one_batch {{ alg: kBP }}
updater {{ type: kSGD learning_rate {{ type: kFixed base_lr: 0.01 }} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ path: "train.zarr" batchsize: {batch} {fields} }} }}
  layer {{ name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 10 }}
    param {{ name: "w" init {{ type: kUniformSqrtFanIn }} }} param {{ name: "b" }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }}
}}
"""
PARAMS = Path("run", "checkpoint", f"step{RECORDS // BATCH}", "params.safetensors")


def create(folder: Path) -> None:
    """Write a folder for each kind of store, with its job and the params that it trains to, and other stores."""
    from dsinga.data import write_store

    for name, seed in (("records", 0), ("other", 1)):
        rng = np.random.default_rng(seed)
        data = rng.integers(0, 30, (RECORDS, *SHAPE), dtype=np.uint8)
        labels = rng.integers(0, 10, RECORDS)
        write_store(folder / name / "train.zarr", [(data, labels)], classes=[f"class {n}" for n in range(10)])
        write_store(folder / name / "mean.zarr", [(data[:80].mean(axis=0, dtype=np.float32)[None], None)])
        write_store(folder / name / "std.zarr", [(data[:80].std(axis=0, dtype=np.float32)[None] + 1, None)])
        if seed == 0:
            foreign(folder, data, labels)
            write_store(folder / "earlier" / "train.zarr", [(data, labels)])
            remove_checksums(folder / "earlier" / "train.zarr")
    for kind in sorted(set(KINDS)):
        os.chdir(folder / kind)
        fields = 'mean_file: "mean.zarr" std_file: "std.zarr"' if kind == "records" else ""
        job = JOB.format(steps=RECORDS // BATCH, batch=BATCH, fields=fields)
        Path("job.conf").write_text(job, encoding="utf-8")
        if run_dsinga(["train", "job.conf", "--workspace", "run"]):
            raise RuntimeError(f"the undamaged {kind} does not train")
        PARAMS.rename("right.safetensors")
        shutil.rmtree("run")


def foreign(folder: Path, data: np.ndarray, labels: np.ndarray) -> None:
    """Write zarr groups of formats 2 and 3, the chunks of which have checksums and all are written."""
    group = zarr.open_group(folder / "zarr2" / "train.zarr", mode="w", zarr_format=2)
    options: dict[str, Any] = {"compressors": numcodecs.Zlib(1), "fill_value": None}
    group.create_array("x", data=data.astype(np.float32), chunks=(60, *SHAPE), **options)
    group.create_array("y", data=labels.astype(np.int64), chunks=(100,), **options)
    group = zarr.open_group(folder / "zarr3" / "train.zarr", mode="w", zarr_format=3)
    options = {"compressors": [Crc32cCodec()], "fill_value": float("nan")}
    group.create_array("x", data=data.astype(np.float32), chunks=(60, 3, 64, 64), **options)
    group.create_array("y", data=labels.astype(np.int32), chunks=(100,), compressors=[Crc32cCodec()], fill_value=0)


def run(random: random_module.Random, original: Path, folder: Path) -> int:
    """Damage a copy of a kind of store, train from it, and return the status or WRONG."""
    kind = random.choice(KINDS)
    copy_tree(original / kind, folder)
    right = (folder / "right.safetensors").read_bytes()
    (folder / "right.safetensors").unlink()
    stores = sorted(folder.glob("*.zarr"))
    store = stores[-1] if random.random() < 0.7 else random.choice(stores)
    other = original / "other" / store.name if kind == "records" else original / "records" / "train.zarr"
    told, compared = damage_store(random, kind, store, other)
    say_damage(f"{kind}: {store.name}: {told}")
    status = run_dsinga(["train", "job.conf", "--workspace", "run"])
    if status == 0 and compared and (folder / PARAMS).read_bytes() != right:
        return WRONG
    return status


def damage_store(random: random_module.Random, kind: str, store: Path, other: Path) -> tuple[str, bool]:
    """Damage a store; return what was done, and whether it must be noticed where it changes what is read."""
    certain = kind == "records"
    what = random.choice(("bytes", "bytes", "entry", "metadata", "metadata", "metadata", "chunks", "mixture", "whole"))
    chunks = [path for path in files_of(store) if path.suffix != ".json" and not path.name.startswith(".z")]
    metadata = [path for path in files_of(store) if path not in chunks]
    if what == "bytes":
        path = random.choice([*chunks, *metadata, *metadata])
        return damage_bytes(random, path), certain or (path in chunks and kind != "earlier")
    if what == "metadata":
        path = random.choice(metadata)
        source = other / path.relative_to(store)
        document = json.loads((source if source.exists() else other / "zarr.json").read_text("utf-8"))
        told = [damage_json(random, path, document) for _ in range(random.choice((1, 1, 1, 2)))]
        return "; ".join(told), certain
    if what == "chunks" and certain:
        return exchange_chunks(random, store, chunks, other), True
    if what == "chunks":
        return remove_chunk(random, chunks), kind == "zarr2"
    if what == "mixture" and certain:
        return mix(random, store, other), True
    if what == "whole":
        return replace_store(random, store), certain
    return damage_entry(random, store), certain


def exchange_chunks(random: random_module.Random, store: Path, chunks: list[Path], other: Path) -> str:
    """Exchange two chunks, within and between arrays, or copy one from the other store."""
    first, second = random.choice(chunks), random.choice([*chunks, *files_of(other / "data" / "c")])
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    if second.is_relative_to(store):
        second.write_bytes(content)
    return f"exchange {first.relative_to(store)} with {second}"


def remove_chunk(random: random_module.Random, chunks: list[Path]) -> str:
    """Remove a chunk, or put a folder in its place."""
    path = random.choice(chunks)
    path.unlink()
    if random.random() < 0.5:
        path.mkdir()
        return f"folder in place of {path.parent.name}/{path.name}"
    return f"no {path.parent.name}/{path.name}"


def mix(random: random_module.Random, store: Path, other: Path) -> str:
    """Put an array, or the attributes, of the other store in place of those of ``store``."""
    part = random.choice([path.name for path in sorted(store.iterdir())])
    if (store / part).is_dir():
        shutil.rmtree(store / part)
        copy_tree(other / part, store / part)
    else:
        shutil.copy(other / part, store / part)
    return f"{part} of another store"


def replace_store(random: random_module.Random, store: Path) -> str:
    """Replace a store by a file, a link, or nothing, empty it, or add things to it that do not belong there."""
    kind = random.choice(("file", "nothing", "empty", "link to itself", "empty folder for an array", "additions"))
    if kind == "additions":
        for path in (store, store / random.choice([path.name for path in store.iterdir() if path.is_dir()])):
            (path / random.choice((".DS_Store", "zarr.json~", "c.bak", ".zgroup", "9"))).write_bytes(
                random.randbytes(9)
            )
        (store / "more").mkdir()
        return kind
    if kind == "empty folder for an array":
        part = random.choice([path for path in sorted(store.iterdir()) if path.is_dir()])
        shutil.rmtree(part)
        part.mkdir()
        return kind
    shutil.rmtree(store)
    if kind == "file":
        store.write_bytes(random.randbytes(100))
    elif kind == "empty":
        store.mkdir()
    elif kind == "link to itself":
        os.symlink(store.name, store)
    return kind
