"""Damaged ONNX files, with and without external data: a sentence or another net, and nothing half written."""

from __future__ import annotations

import random as random_module
from pathlib import Path

from tools.faults.damage import copy_tree, damage_source
from tools.faults.verdicts import WRONG, run_dsinga, say_damage

MOST_BYTES, MOST_SECONDS = 512 << 20, 5.0  # of a case
NAMES = ("images", "sequences", "codes")


def create(folder: Path) -> None:
    """Write three nets, one with its params beside it, each in a folder."""
    from dsinga import nn
    from dsinga.addons.onnx.export_net import model_to_onnx
    from dsinga.addons.onnx.written_files import write_onnx

    image, sequence, code = nn.Input((3, 8, 8)), nn.Input((5, 4)), nn.Input(5)
    y = nn.MaxPooling2D(2)(nn.Conv2D(4, 3, activation="relu")(image))
    outputs = nn.Dense(5)(nn.Flatten()(y)), nn.Dense(2)(nn.LSTM(16)(sequence)), nn.Dense(2)(nn.Embedding(99, 4)(code))
    for name, x, y in zip(NAMES, (image, sequence, code), outputs, strict=True):
        (folder / name / "source").mkdir(parents=True)
        path = folder / name / "source" / "net.onnx"
        write_onnx(*model_to_onnx(nn.Model(x, y)), path, external=0 if name == "sequences" else 10**9)


def run(random: random_module.Random, original: Path, folder: Path) -> int:
    """Damage a copy of a net, import it and return the status."""
    name = random.choice(NAMES)
    copy_tree(original / name, folder)
    say_damage(f"{name}: {damage_source(random, folder / 'source', 0.9)}")
    status = run_dsinga(["import", "source/net.onnx", "--out", "net"])
    return WRONG if status and (folder / "net").exists() else status
