"""Training in bfloat16 on an emulated device follows PyTorch's, under autocast on CPU cores, and float32."""

from typing import Any

import numpy as np
import pytest

from dsinga.job import loads
from dsinga.ops import BACKENDS
from tests.core.ops.test_ops_bf16 import (  # noqa: F401
    OnHost,
    test_a_mean_far_from_zero_does_not_hide_the_variance,
    test_a_product_is_computed_block_by_block_of_a_large_weight,
    test_attention,
    test_batch_normalisation,
    test_batch_normalisation_of_a_whole_batch,
    test_convolution,
    test_infinite_numbers_and_nan_stay,
    test_inner_product,
    test_local_response_normalisation,
    test_many_rows_are_multiplied_by_a_weight_that_is_rounded_whole,
    test_pooling,
    test_rectifiers_and_sums_keep_bfloat16,
    test_recurrent_layers_differ_from_float32_by_their_rounding,
    test_sums_of_an_odd_number_of_rows_are_right,
    test_the_same_numbers_give_the_same_bits_in_every_call,
)
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn
from tools.benchmarks.gpu_loop import Loop

STEPS, RATE, MOMENTUM = 12, 0.002, 0.9
INIT = "param { init { type: kGaussianSqrtFanIn value: 1.4 } }"
JOB = f"""
name: "net" train_steps: {STEPS} disp_freq: 0
updater {{ type: kSGD momentum: {MOMENTUM} learning_rate {{ type: kFixed base_lr: {RATE} }} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ path: "x.zarr" batchsize: 16 shape: [3, 12, 12] }} }}
  layer {{ name: "image" type: kImagePreprocess srclayers: "data" rgbimage_conf {{ scale: 0.01 }} }}
  layer {{ name: "c1" type: kConvolution srclayers: "image"
    convolution_conf {{ kernel: 3 pad: 1 num_filters: 8 }} {INIT} }}
  layer {{ name: "b1" type: kBM srclayers: "c1" }}
  layer {{ name: "r1" type: kReLU srclayers: "b1" }}
  layer {{ name: "c2" type: kConvolution srclayers: "r1"
    convolution_conf {{ kernel: 3 pad: 1 num_filters: 8 }} {INIT} }}
  layer {{ name: "b2" type: kBM srclayers: "c2" }}
  layer {{ name: "sum" type: kAdd srclayers: ["b2", "r1"] }}
  layer {{ name: "r2" type: kReLU srclayers: "sum" }}
  layer {{ name: "c3" type: kConvolution srclayers: "r2"
    convolution_conf {{ kernel: 3 stride: 2 num_filters: 16 }} {INIT} }}
  layer {{ name: "r3" type: kReLU srclayers: "c3" }}
  layer {{ name: "p3" type: kPooling srclayers: "r3" pooling_conf {{ kernel: 2 stride: 1 }} }}
  layer {{ name: "ip" type: kInnerProduct srclayers: "p3" innerproduct_conf {{ num_output: 10 }} {INIT} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: ["ip", "data"] }}
}}
"""


def trained(precision: str) -> tuple[Loop, list[float]]:
    loop = Loop(loads(JOB, "job.conf"), emulated_cupy.load(FakeCudnn()).for_worker(0, precision))
    return loop, [loop.iterate()["loss"][0] / 16 for _ in range(STEPS)]


def of_pytorch(loop: Loop) -> list[float]:
    """Return PyTorch's losses of the same net, initial values and batch."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as f

    values: dict[str, Any] = {
        name: torch.tensor(np.array(value)).requires_grad_(not name.endswith(("mean", "variance")))
        for name, value in loop.first.items()
    }
    records = loop.records["data"]
    images = torch.tensor(np.asarray(loop.ops.to_numpy(records.data), np.float32) * 0.01)
    labels = torch.tensor(np.asarray(records.labels).reshape(-1).astype(np.int64))
    updater = torch.optim.SGD([value for value in values.values() if value.requires_grad], RATE, MOMENTUM)

    def convolve(x: Any, name: str, channels: int, **geometry: int) -> Any:
        return f.conv2d(x, values[f"{name}_weight"].reshape(-1, channels, 3, 3), values[f"{name}_bias"], **geometry)

    def normalise(x: Any, name: str) -> Any:
        return f.batch_norm(x, None, None, values[f"{name}_scale"], values[f"{name}_bias"], training=True)

    losses = []
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            first = f.relu(normalise(convolve(images, "c1", 3, padding=1), "b1"))
            second = f.relu(normalise(convolve(first, "c2", 8, padding=1), "b2") + first)
            third = f.max_pool2d(f.relu(convolve(second, "c3", 8, stride=2)), 2, 1)
            scores = f.linear(third.flatten(1), values["ip_weight"], values["ip_bias"])
        loss = f.cross_entropy(scores.float(), labels)
        updater.zero_grad()
        loss.backward()
        updater.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.ci
def test_losses_in_bfloat16_follow_pytorchs_and_those_in_float32():
    loop, rounded = trained("bf16")
    _, exact = trained("float32")
    assert exact[-1] < 0.2 * exact[0]
    bound = 0.005 * exact[0]
    assert 0 < np.abs(np.array(rounded) - exact).max() < bound
    assert np.abs(np.array(rounded) - of_pytorch(loop)).max() < bound


# Kernels in bfloat16 of the backend of GPUs, by the tests of those of CPUs: on an emulated device, and on a card.
@pytest.fixture(scope="module", params=["cupy", pytest.param("card", marks=pytest.mark.gpu)])
def ops(request: Any) -> Any:
    backend = BACKENDS["cupy"]() if request.param == "card" else emulated_cupy.load(FakeCudnn())
    worker = backend.for_worker(0, "bf16")
    worker.enter()
    return OnHost(worker)
