"""Fine-tuning on the published files of MNIST: a net of nine digits, through its ONNX file, learns the tenth."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from dsinga import nn

pytestmark = pytest.mark.data
BATCH, STEPS = 64, 300  # from scratch


def net(classes: int, head: str) -> nn.Sequential:
    layers = [nn.Dense(256, activation="relu", name="lower"), nn.Dense(256, activation="relu", name="upper")]
    model = nn.Sequential([nn.Input(784), nn.Rescaling(1 / 255), *layers, nn.Dense(classes, name=head)])
    model.compile(nn.Adam(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def read(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (
        gzip.decompress((folder / f"{name}-{part}-ubyte.gz").read_bytes()) for part in ("images-idx3", "labels-idx1")
    )
    return np.frombuffer(images, np.uint8)[16:].reshape(-1, 784), np.frombuffer(labels, np.uint8)[8:].astype(np.int64)


def test_a_net_of_nine_digits_learns_ten_in_a_third_of_the_steps(real_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (x, y), test = read(real_data / "mnist", "train"), read(real_data / "mnist", "t10k")
    base, scratch, full, low_rank = net(9, "nine"), net(10, "ten"), net(10, "ten"), net(10, "ten")
    base.fit(x[y < 9], y[y < 9], epochs=2, batch_size=BATCH, progress=False)
    base.export(tmp_path / "nine.onnx")
    imported = nn.load_onnx(tmp_path / "nine.onnx").params
    carried = {name: imported[name] for name in base.params if not name.startswith("nine")}
    options = {"batch_size": BATCH, "progress": False}
    scratch.fit(x, y, train_steps=STEPS, **options)
    accuracy = scratch.evaluate(*test)["accuracy"]
    full.params = carried
    full.fit(x, y, train_steps=STEPS // 3, **options)
    assert full.evaluate(*test)["accuracy"] > accuracy
    low_rank.params = carried
    low_rank.add_lora(rank=8, layers=["lower", "upper"], trainable="ten")
    low_rank.fit(x, y, train_steps=STEPS // 3, **options)
    assert low_rank.evaluate(*test)["accuracy"] > accuracy
    low_rank.save_lora(tmp_path / "lora.safetensors")
    low_rank.save_weights(tmp_path / "whole.safetensors")
    assert (tmp_path / "lora.safetensors").stat().st_size * 10 < (tmp_path / "whole.safetensors").stat().st_size
