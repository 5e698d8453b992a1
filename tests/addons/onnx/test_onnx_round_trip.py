"""Every model of ``dsinga.models``, exported to ONNX and read again: the same params and outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from tests.addons.onnx.test_onnx_export_models import MODELS, made

onnx = pytest.importorskip("onnx")

# Whose params have names that do not say their layer, which the import gives that of the layer, or are of a layer that
# a file spells out, as a convolutional LSTM.
NAMED_BY_LAYER = {"autoencoder", "convlstm", "field_resnet"}
BUSY = {"alexnet", "vgg"}


def round_trip(name: str, folder: Path) -> tuple[nn.Model, nn.Model, dict[str, np.ndarray]]:
    """Return a model, the model of its ONNX file, and records of each input."""
    make, x = MODELS[name]
    model = made(make, x, folder)
    records = x if isinstance(x, dict) else {model.input_names()[0]: x}
    try:
        model.input_shapes()
    except UserError:
        model.record_shapes = {each: array.shape[1:] for each, array in records.items()}
    path = folder / "net.onnx"
    model.export(path)
    shapes = [records[info.name].shape[1:] for info in onnx.load(path).graph.input]
    return model, nn.load_onnx(path, *shapes), records


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.ci if name in BUSY else ()) for name in MODELS],
)
def test_a_model_comes_back_with_its_params_and_outputs(name: str, tmp_path: Path) -> None:
    model, imported, records = round_trip(name, tmp_path)
    predicting = {param for node in model.predicting_net().nodes for param in node.params}
    bits = {np.sort(array.ravel()).tobytes() for array in imported.params.values()}  # some are arranged otherwise
    for key, array in model.params.items():
        if key in predicting:
            assert np.sort(array.ravel()).tobytes() in bits, key
            assert key in imported.params or name in NAMED_BY_LAYER, key
    given = records if len(records) > 1 else next(iter(records.values()))
    for ours, theirs in zip(listed(imported.predict(given)), listed(model.predict(given)), strict=True):
        np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=1e-6, atol=1e-6)


def listed(outputs: object) -> list[np.ndarray]:
    """Return the outputs of a model as a list."""
    return outputs if isinstance(outputs, list) else [np.asarray(outputs)]
