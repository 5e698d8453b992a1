"""The small nets of PyTorch that the wheel of onnx has, converted to a newer opset: models give the stored outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-converted"
REFUSED = {
    "give shapes that differ": {f"PReLU_{axes}d_multiparam" for axes in (1, 2, 3)},  # not as ONNX says
    "differ among the records": {"PoissonNLLLLoss_no_reduce"},
}
WORDS = {name: words for words, names in REFUSED.items() for name in names}
NETS = [path.name.removeprefix("test_") for path in sorted(FOLDER.iterdir()) if (path / "model.onnx").exists()]


def stored(name: str, what: str) -> list[np.ndarray]:
    """Return the inputs or outputs that lie beside a net."""
    paths = sorted((FOLDER / f"test_{name}" / "test_data_set_0").glob(f"{what}_*.pb"))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def listed(outputs: Any) -> list[np.ndarray]:
    """Return the outputs of a model as a list."""
    return outputs if isinstance(outputs, list) else [outputs]


@pytest.mark.ci
@pytest.mark.parametrize("name", NETS)
def test_a_small_net_gives_its_outputs_or_is_refused(name: str, tmp_path: Path) -> None:
    net = onnx.version_converter.convert_version(onnx.load(FOLDER / f"test_{name}" / "model.onnx"), 13)
    path = tmp_path / "net.onnx"
    onnx.save(net, path)
    if name in WORDS:
        refused(lambda: nn.load_onnx(path), WORDS[name])
        return
    x = stored(name, "input")
    for ours, theirs in zip(
        listed(nn.load_onnx(path).predict(x if len(x) > 1 else x[0])), stored(name, "output"), strict=True
    ):
        np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=1e-3, atol=1e-6)
