"""Measure fine-tuning on MNIST: a new head on a net of nine digits, and LoRA beside all params and the head alone.

``python -m tools.benchmarks.accuracy_fine_tuning RAW``, where RAW is the folder of the published files, prints steps,
params, bytes, seconds and accuracies. The net of nine digits goes through an ONNX file.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dsinga import nn

HIDDEN = ("hidden1", "hidden2", "hidden3")
SCRATCH_STEPS, FEW = 600, 2000


def read(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 784) and labels (n,) of a part of MNIST."""
    files = (folder / f"{name}-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1"))
    images, labels = (np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8) for file in files)
    return images[16:].reshape(-1, 784), labels[8:].astype(np.int64)


def net(classes: int, head: str) -> nn.Sequential:
    """Return a perceptron with three hidden layers of 512 units."""
    layers = [nn.Dense(512, activation="relu", name=name) for name in HIDDEN]
    model = nn.Sequential([nn.Input(784), nn.Rescaling(1 / 255), *layers, nn.Dense(classes, name=head)])
    model.compile(nn.Adam(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit(model: nn.Sequential, what: str, test: Any, *records: np.ndarray, **options: Any) -> None:
    """Train a model, and print its trained params, its seconds and its accuracy."""
    numbers = sum(int(np.prod(variable.shape)) for variable in model.weights if variable.trainable)
    started = time.perf_counter()
    model.fit(*records, progress=False, **options)
    seconds, accuracy = time.perf_counter() - started, model.evaluate(*test)["accuracy"]
    print(f"{what}: {numbers} numbers trained, {seconds:.2f} s, accuracy {accuracy:.4f}")


def main(raw: Path, folder: Path) -> None:
    """Print the measurements; files are written to a folder."""
    (x, y), test = read(raw, "train"), read(raw, "t10k")
    base = net(9, "nine")
    base.fit(x[y < 9], y[y < 9], epochs=3, batch_size=128, progress=False)
    base.export(folder / "nine.onnx")
    imported = nn.load_onnx(folder / "nine.onnx").params
    carried = {name: value for name, value in imported.items() if name.startswith(HIDDEN)}

    fit(net(10, "ten"), f"{SCRATCH_STEPS} steps from scratch", test, x, y, train_steps=SCRATCH_STEPS, batch_size=128)
    for steps in (SCRATCH_STEPS // 12, SCRATCH_STEPS // 6, SCRATCH_STEPS // 3):
        model = net(10, "ten")
        model.params = carried
        fit(model, f"{steps} steps with a new head", test, x, y, train_steps=steps, batch_size=128)

    for what, rank in (("all params", 0), ("the head", 0), ("LoRA of rank 4", 4), ("LoRA of rank 16", 16)):
        model, file = net(10, "ten"), folder / "saved.safetensors"
        model.params = carried
        if rank:
            model.add_lora(rank=rank, layers=list(HIDDEN), trainable="ten")
        model.trainable = what == "all params"
        model.get_layer("ten").trainable = True
        fit(model, f"{FEW} records, {what}", test, x[:FEW], y[:FEW], epochs=10, batch_size=64)
        model.save_lora(file) if rank else model.save_weights(file)
        print(f"  {file.stat().st_size} bytes saved")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as written:
        main(Path(sys.argv[1]), Path(written))
