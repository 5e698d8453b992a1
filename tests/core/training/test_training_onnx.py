"""Updaters give the numbers of ONNX 1.23.2's own test cases of Adam, Momentum and Adagrad (``onnx.backend.test``).

The inputs are those of ``export_adam``, ``export_momentum``, ``export_nesterov_momentum`` and ``export_adagrad`` of
``onnx.backend.test.case.node``; the results are what its ``apply_...`` return for them. ONNX adds epsilon to the root,
which SINGA's formulas have under it: epsilon is small enough here that both are the same. ONNX's momentum has the
learning rate outside, so that its history is -1 / 0.1 (SGD) or 1 / 0.1 (Nesterov) times that of dsinga.
"""

from typing import Any

import numpy as np
import pytest

from dsinga.job import UpdaterConf
from dsinga.training import create_updater

X, G, V, H = [1.2, 2.8], [-0.94, -2.5], [1.7, 3.6], [0.1, 0.1]
CASES: dict[str, tuple[dict[str, Any], list[float], list[float], dict[str, list[float]], list[float]]] = {
    "adam": (
        {"type": "kAdam", "adam_conf": {"beta1": 0.95, "beta2": 0.1}, "delta": 1e-14},
        X, G, {"mean": V, "squares": H}, [1.025036335, 2.661032677],
    ),
    "momentum": (
        {"type": "kSGD", "momentum": 0.95}, X, G, {"history": [-0.17, -0.36]}, [1.132380009, 2.707720041],
    ),
    "nesterov": (
        {"type": "kNesterov", "momentum": 0.95, "weight_decay": 0.01},
        X, G, {"history": [0.17, 0.36]}, [1.227535009, 2.957139969],
    ),
    "adagrad": ({"type": "kAdaGrad", "delta": 1e-10}, [1.0], [-1.0], {"squares": [2.0]}, [1.057696223]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_updates_are_those_of_onnx(name: str) -> None:
    fields, x, g, slots, expected = CASES[name]
    rate = {"type": "kFixed", "base_lr": 0.1}
    updater = create_updater(UpdaterConf(**{"weight_decay": 0.001, "learning_rate": rate, **fields}))
    value, state = np.array(x, np.float32), {slot: np.array(array, np.float32) for slot, array in slots.items()}
    updater.update(0, value, np.array(g, np.float32), state)
    np.testing.assert_allclose(value, expected, rtol=2e-5)  # epsilon 1e-5 of ONNX's AdaGrad: 6e-6
