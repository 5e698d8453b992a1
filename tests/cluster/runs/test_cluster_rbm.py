"""Restricted Boltzmann machines on a cluster: any number of workers, stacks of jobs, and the unfolded auto-encoder."""

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.job import Job, UpdatePlace, loads
from tests.support.small_job import assert_same, with_topology

DATA = """
  layer { name: "data" type: kRecordInput include: kTrain
    store_conf { path: "train.zarr" batchsize: 100 shape: 64 std_value: 16 } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "test.zarr" batchsize: 50 shape: 64 std_value: 16 } }
"""
CD = """
train_one_batch { alg: kCD cd_conf { cd_k: 2 } }
updater { type: kSGD momentum: 0.8 weight_decay: 0.0002 learning_rate { type: kFixed base_lr: 0.1 } }
"""


def machine(number: int, source: str, hidden: int, more: str = "") -> str:
    """The layers of the n-th machine of a stack, with SINGA's names for the params."""
    return f"""
  layer {{ name: "vis" type: kRBMVis srclayers: "{source}" srclayers: "hid" rbm_conf {{ hdim: {hidden} }}
    param {{ name: "w{number}" init {{ type: kGaussian std: 0.1 }} }} param {{ name: "b{number}1" wd_scale: 0 }} }}
  layer {{ name: "hid" type: kRBMHid srclayers: "vis" rbm_conf {{ hdim: {hidden} {more} }}
    param {{ name: "w{number}_" share_from: "w{number}" }} param {{ name: "b{number}2" wd_scale: 0 }} }}
"""


def dense(name: str, source: str, outputs: int, weight: str, bias: str) -> str:
    """A fully connected layer and its sigmoid, numbered in their names."""
    return f"""
  layer {{ name: "ip{name}" type: kInnerProduct srclayers: "{source}" param {{ {weight} }} param {{ name: "{bias}" }}
    innerproduct_conf {{ num_output: {outputs} transpose: {"true" if "share" in weight else "false"} }} }}
  layer {{ name: "act{name}" type: kSigmoid srclayers: "ip{name}" }}
"""


def job_of(stores: Path, layers: str, *, top: str = CD, steps: int = 20) -> Job:
    text = f"train_steps: {steps} disp_freq: 10 {top} neuralnet {{ {DATA} {layers} }}"
    return loads(text, str(stores / "machine.conf"))


@pytest.mark.parametrize("more", ["", "gaussian: true", "persistent: true"])
def test_more_workers_change_nothing(stores: Path, threads: Client, more: str):
    job = job_of(stores, machine(1, "data", 24, more)).replace(blocks=3)
    if more == "gaussian: true":  # whose hidden units have no bounds
        job.updater.learning_rate.base_lr = 0.001
    single = train(with_topology(job, 1), threads, progress=False)
    for workers in (2, 3):
        result = train(with_topology(job, workers), threads, progress=False)
        assert_same(result.params, single.params)
        for row, expected in zip(result.history, single.history, strict=True):
            assert row["reconstruction_error"] == expected["reconstruction_error"]
    if "persistent" in more:
        assert set(np.unique(single.params["hid_chain"])) == {0.0, 1.0}


@pytest.mark.parametrize("update", UpdatePlace)
def test_layers_below_keep_their_bits(stores: Path, threads: Client, update: UpdatePlace):
    below = dense("1", "data", 30, 'name: "w0" init { type: kGaussian std: 0.1 }', "b0")
    job = with_topology(job_of(stores, below + machine(1, "act1", 24)), 3)
    job = job.replace(cluster=job.cluster.replace(update=update))
    before = train(job.replace(train_steps=1), threads, progress=False).params
    after = train(job, threads, progress=False).params
    np.testing.assert_array_equal(after["w0"], before["w0"])
    assert np.abs(after["w0"]).max() > 0.1
    assert not np.array_equal(after["w1"], before["w1"])


@pytest.mark.ci
def test_a_stack_is_trained_job_by_job_and_unfolded(stores: Path, threads: Client, tmp_path: Path):
    """As SINGA's examples/rbm: each job names the checkpoints of those before it as SINGA would have written them."""
    steps, first = 40, tmp_path / "rbm1"
    rbm1 = train(job_of(stores, machine(1, "data", 32), steps=steps), threads, workspace=first, progress=False)
    path = f'checkpoint_path: "{first}/checkpoint/step{steps}-worker0"'
    bottom = dense("1", "data", 32, 'name: "w1"', "b12")
    second, test = tmp_path / "rbm2", "test_freq: 20 test_steps: 2"
    top = CD.replace("0.1", "0.001") + path + test
    rbm2 = train(
        job_of(stores, bottom + machine(2, "act1", 8, "gaussian: true"), top=top, steps=steps),
        threads,
        workspace=second,
        progress=False,
    )
    assert_same(
        {name: rbm2.params[name] for name in ("w1", "b12")}, {name: rbm1.params[name] for name in ("w1", "b12")}
    )
    errors = rbm2.history.phase("test")[:, "reconstruction_error"]
    assert errors[-1] < errors[0]

    unfolded = (
        bottom
        + dense("2", "act1", 8, 'name: "w2"', "b22").split('  layer { name: "act2"')[0]
        + dense("3", "ip2", 32, 'name: "w3" share_from: "w2"', "b21")
        + dense("4", "act3", 64, 'name: "w4" share_from: "w1"', "b11")
        + 'layer { name: "loss" type: kEuclideanLoss srclayers: "act4" srclayers: "data" }'
    )
    top = f"updater {{ type: kAdaGrad learning_rate {{ type: kFixed base_lr: 0.01 }} }} {test} {path}"
    job = job_of(stores, unfolded, top=f'{top} checkpoint_path: "{second}/checkpoint/step{steps}-worker0"', steps=60)
    tuned = train(with_topology(job, 2), threads, progress=False)
    losses = tuned.history.phase("test")[:, "loss"]
    assert losses[-1] < losses[0]
    still = job.replace(train_steps=1)
    still.updater.learning_rate.base_lr = 0
    ported = train(still, threads, progress=False).params
    assert_same(ported, {name: (rbm2.params | rbm1.params)[name] for name in ("w1", "b12", "w2", "b22", "b21", "b11")})
