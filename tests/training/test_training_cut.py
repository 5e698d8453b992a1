"""Cutting the batch changes nothing: in float64 the params of cut and whole batches agree to the last digits.

In float32 the same holds at each step, but a net with maxima and kinks may choose another branch for a sum that was
rounded otherwise, and then go a slightly different way: that is rounding too, though it shows earlier than 1e-7.
"""

from __future__ import annotations

import numpy as np
import pytest

from dsinga.job import Phase, loads
from dsinga.layers import Context, RecordInfo, Records
from dsinga.net import NeuralNet, create_net, cut_evenly
from dsinga.ops.numpy_ops import NumpyOps
from dsinga.training import bp, initial_values

BATCH, STEPS = 10, 20

NET = """
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "x" batchsize: 10 shape: [3, 9, 9] } }
  layer { name: "conv1" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 }
    param { init { type: kGaussian std: 0.0001 } } param { init { type: kConstant value: 0 } } }
  layer { name: "pool1" type: kPooling srclayers: "conv1" pooling_conf { pool: MAX kernel: 3 stride: 2 } }
  layer { name: "relu1" type: kReLU srclayers: "pool1" }
  layer { name: "norm1" type: kLRN srclayers: "relu1" lrn_conf { local_size: 3 alpha: 5e-5 } }
  layer { name: "drop1" type: kDropout srclayers: "norm1" dropout_conf { dropout_ratio: 0.3 } }
  layer { name: "conv2" type: kConvolution srclayers: "drop1" convolution_conf { num_filters: 5 kernel: 3 }
    param { init { type: kGaussian std: 0.1 } } param { init { type: kConstant value: 0 } } }
  layer { name: "relu2" type: kReLU srclayers: "conv2" }
  layer { name: "ip" type: kInnerProduct srclayers: "relu2" innerproduct_conf { num_output: 6 }
    param { init { type: kGaussian std: 0.1 } } param { init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def trained(net: NeuralNet, parts: int) -> dict[str, np.ndarray]:
    """Return the params after some steps of SGD in float64, with each batch computed in ``parts`` parts."""
    values = {name: value.astype(np.float64) for name, value in initial_values(net.params, 0).items()}
    rng = np.random.default_rng(5)
    for step in range(STEPS):
        images, labels = rng.uniform(-128, 128, (BATCH, 3, 9, 9)), rng.integers(0, 6, BATCH)
        gradients: dict[str, list[np.ndarray]] = {name: [] for name in values}
        for rows in cut_evenly(BATCH, parts):
            records = Records(images[rows.start : rows.stop], labels[rows.start : rows.stop])
            ctx = Context(NumpyOps(), Phase.kTrain, rows, seed=0, step=step)
            bp(net, values, {"data": records}, ctx, lambda name, share, into=gradients: into[name].append(share))
        for name, shares in gradients.items():
            values[name] = values[name] - 0.01 * sum(shares).reshape(values[name].shape)  # type: ignore[union-attr]
    return values


@pytest.mark.parametrize("parts", [2, 3, 10])
def test_cutting_the_batch_changes_nothing_in_float64(parts: int) -> None:
    net = create_net(loads(NET).neuralnet, Phase.kTrain, {"data": RecordInfo((3, 9, 9), BATCH)})
    whole, cut = trained(net, 1), trained(net, parts)
    for name, value in whole.items():
        assert value.dtype == np.float64
        np.testing.assert_allclose(cut[name], value, rtol=0, atol=1e-12 * np.abs(value).max(), err_msg=name)
