"""Averages of params: against torch.optim.swa_utils.AveragedModel, however a net is cut and wherever params are."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.api import train
from dsinga.base.arrays import EMA_SLOT
from dsinga.base.errors import UserError
from dsinga.base.registry import register, unregister
from dsinga.checkpoint import read_checkpoint, read_params
from dsinga.job import ClusterConf, Job, LRGenConf, UpdaterConf, loads
from dsinga.nn import LocalNet
from dsinga.training import Updater, create_updater
from dsinga.training.schedules import decay_at
from tests.support.extension_runs import Acting, validating
from tests.support.refusals import refused
from tests.support.small_job import assert_close, assert_same

STEPS, DECAY = 12, 0.8
Params = dict[str, np.ndarray]


def with_ema(job: Job, **settings: Any) -> Job:
    """Return the job with averages of its params."""
    return job.replace(updater=job.updater.replace(ema_conf={"decay": DECAY, **settings}))


def torch_averages(steps: Sequence[Params], decay: float = DECAY) -> Params:
    """Return the averages that PyTorch's AveragedModel has of the params after each step."""
    torch = pytest.importorskip("torch")
    swa = torch.optim.swa_utils
    module = torch.nn.ParameterDict({name: torch.zeros(value.shape) for name, value in steps[0].items()})
    averages = swa.AveragedModel(module, multi_avg_fn=swa.get_ema_multi_avg_fn(decay))
    for params in steps:
        with torch.no_grad():
            for name, value in params.items():
                module[name].copy_(torch.from_numpy(value))
        averages.update_parameters(module)
    return {name: averages.module[name].detach().numpy() for name in steps[0]}


def params_of_steps(job: Job) -> list[Params]:
    """Return the params after each step of a run without averages."""
    steps: list[Params] = []
    train(job, extensions=[Acting(1, lambda loop: steps.append(loop.params()))], progress=False)
    return steps[1:] if len(steps) > job.train_steps else steps


@pytest.fixture
def job(job: Job) -> Job:
    return job.replace(train_steps=STEPS, test_freq=0, checkpoint_freq=STEPS)


TWO = {"nworkers_per_group": 2, "nservers_per_group": 2}
CUTS = {
    "here": (None, {}),
    "rows": (0, TWO),
    "features": (1, TWO),
    "mixed": (-1, {"nworkers_per_group": 3, "nservers_per_group": 2}),
    "updates on workers": (0, {"nworkers_per_group": 2, "update": "kWorker"}),
}


@pytest.mark.parametrize(("cut", "figures"), CUTS.values(), ids=CUTS)
def test_averages_are_those_of_pytorch_however_the_net_is_cut(job, threads, tmp_path, cut, figures):
    net = job.neuralnet.replace(partition_dim=cut or 0)
    if cut == -1:  # the last layer by features, the others by rows
        layers = [copy.copy(layer) for layer in net.layer]
        next(layer for layer in layers if layer.name == "ip").partition_dim = 1
        net = net.replace(layer=layers)
    averaged = with_ema(job).replace(neuralnet=net, cluster=ClusterConf(**figures))
    client = None if cut is None else threads
    result = train(averaged, client, workspace=tmp_path, progress=False)
    checkpoint = read_checkpoint(tmp_path / "checkpoint" / f"step{STEPS}")
    trained = [name for name, slots in checkpoint.state.items() if EMA_SLOT in slots]
    assert len(trained) == len(result.params) - 2  # all but the running statistics of the normalisation
    expected = torch_averages([{name: params[name] for name in trained} for params in params_of_steps(job)])
    assert_close({name: result.params[name] for name in trained}, expected, 2e-5)
    plain = train(averaged.replace(updater=job.updater), client, progress=False).params
    assert_same(checkpoint.params, plain)  # training goes on with the params themselves
    assert_same(read_params(tmp_path), result.params)
    assert max(np.abs(result.params[name] - plain[name]).max() for name in trained) > 1e-4
    for name in plain.keys() - trained:  # running statistics are not averaged
        assert (result.params[name] == plain[name]).all()


def test_a_run_twice_has_the_same_bits(job: Job, threads: Client) -> None:
    averaged = with_ema(job, warmup=True).replace(cluster=ClusterConf(**TWO))
    assert_same(*(train(averaged, threads, progress=False).params for _ in range(2)))


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.ci)])
def test_validation_test_prediction_and_later_runs_use_the_averages(job, threads, stores, tmp_path, workers):
    job = with_ema(validating(job, workers, test_freq=20, checkpoint_freq=40, validate_steps=0), warmup=True)
    client = threads if workers > 1 else None
    result = train(job, client, workspace=tmp_path, progress=False)
    for phase in ("val", "test"):
        row = result.history.phase(phase)[-1]
        for params in (result, str(tmp_path)):
            metrics = dsinga.evaluate(job, params, phase=phase)
            assert metrics["loss"] == pytest.approx(row["loss"], rel=1e-5)
    plain = read_checkpoint(tmp_path / "checkpoint" / "step40").params
    raw = dsinga.evaluate(job, plain, phase="test")
    assert raw["loss"] != pytest.approx(result.history.phase("test")[-1]["loss"], rel=1e-5)
    ported = train(job.replace(checkpoint_path=[str(tmp_path)], train_steps=1), progress=False, extensions=[])
    assert {*ported.params} == {*result.params}


def test_the_params_of_the_best_value_are_averages(job: Job, tmp_path: Path) -> None:
    job = with_ema(validating(job, validate_steps=0))
    best = dsinga.extensions.KeepBest("val/loss")
    result = train(job, workspace=tmp_path, extensions=[best], progress=False)
    loss = min(row["loss"] for row in result.history.phase("val"))
    metrics = dsinga.evaluate(job, tmp_path / "best.safetensors", phase="val")
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("servers", [1, 2], ids=["one server group", "two server groups"])
def test_asynchronous_groups_have_averages(job: Job, threads: Client, tmp_path: Path, servers: int) -> None:
    cluster = ClusterConf(nworker_groups=2, nserver_groups=servers)
    job = with_ema(job).replace(cluster=cluster, test_freq=1000, test_steps=2, train_steps=50)
    result = train(job, threads, workspace=tmp_path, progress=False)
    assert result.history.phase("test")[-1]["accuracy"] > 0.9
    assert_same(read_params(tmp_path), result.params)


def test_decays_begin_with_a_copy_and_warm_up() -> None:
    conf = UpdaterConf(ema_conf={"decay": 0.9}).ema_conf
    assert [decay_at(conf, step) for step in range(3)] == [0.0, 0.9, 0.9]
    conf = UpdaterConf(ema_conf={"decay": 0.7, "warmup": True, "every": 2}).ema_conf
    expected = [None, 0.0, None, 1 - 2 ** (-2 / 3), None, 1 - 3 ** (-2 / 3), None, 1 - 4 ** (-2 / 3)]
    assert [decay_at(conf, step) for step in range(8)] == pytest.approx(expected)
    assert decay_at(conf, 99) == 0.7
    assert decay_at(None, 0) is None


def updater(**ema: Any) -> Updater:
    rate = LRGenConf(type="kFixed", base_lr=0.5)
    return create_updater(UpdaterConf(type="kSGD", learning_rate=rate, ema_conf=ema))


def test_rows_without_a_gradient_keep_the_average_which_is_their_value() -> None:
    from dsinga.ops import SparseRows

    average = updater(decay=0.5)
    value = np.arange(6, dtype=np.float32)
    state = average.initial_state(value)
    rows = SparseRows(np.array([1]), np.ones((1, 2), np.float32), (3, 2))
    for step in range(2):
        average.update(step, value, rows, state)
    assert value.tolist() == [0, 1, 1, 2, 4, 5]
    assert state[EMA_SLOT].tolist() == [0, 1, 1.25, 2.25, 4, 5]


def test_a_first_batch_that_is_skipped_leaves_the_average_at_the_first_value() -> None:
    average, value = updater(decay=0.5), np.full(2, 4.0, np.float32)
    state = average.initial_state(value)
    average.update(1, value, np.ones(2, np.float32), state)
    assert state[EMA_SLOT].tolist() == [3.75, 3.75]


def test_a_loop_of_ones_own_has_the_averages_of_small_and_large_params() -> None:
    """Small params are updated together, as one array."""
    x = np.random.default_rng(0).standard_normal((20, 300)).astype(np.float32)
    model = nn.Sequential([nn.Dense(100), nn.Dense(2)])
    model.compile(nn.SGD(0.1, use_ema=True, ema_momentum=DECAY), "sparse_categorical_crossentropy")
    y = (x.sum(axis=1) > 0).astype(np.int64)
    net = LocalNet(model.job(x, y, train_steps=1, batch_size=20), x, y)
    params, steps, state = net.initial_params(), [], net.updater()
    for _ in range(3):
        state.step(params, net.backward(params, x, y).gradients)
        steps.append({name: value.copy() for name, value in params.items()})
    averages = {name: slots[EMA_SLOT].reshape(params[name].shape) for name, slots in state.state.items()}
    assert_close(averages, torch_averages(steps), 1e-6)


def test_optimizers_average_params_by_the_names_of_keras() -> None:
    conf = nn.Adam(use_ema=True, ema_momentum=0.9, ema_warmup=True, ema_every=5)
    assert conf == loads("updater { " + str(dsinga.job.to_text(conf)) + " }").updater
    assert (conf.ema_conf.decay, conf.ema_conf.warmup, conf.ema_conf.every) == (0.9, True, 5)
    assert nn.Adam(use_ema=False, ema_momentum=0.99).ema_conf is None  # Keras' default
    refused(lambda: nn.Adam(ema_warmup=True), "ema_warmup", "effect without use_ema=True")
    refused(lambda: nn.Adam(use_ema=True, ema_overwrite_frequency=5), "ema_overwrite_frequency", "tests and the")


def test_what_cannot_be_averaged_is_refused(job: Job, tmp_path: Path) -> None:
    @register("updater", "Own")
    class Own(Updater):
        def update(self, step: int, value: Any, gradient: Any, state: Any, *scales: float) -> None:
            value -= gradient

        def change(self, *_: Any) -> None: ...

    text = 'updater { user_type: "Own"\nema_conf { decay: 0.9 } }'
    try:
        refused(lambda: create_updater(loads(text, "job.conf").updater), "conf:2: ema_conf", "'Own'")
    finally:
        unregister("updater", "Own")
    train(job.replace(train_steps=6, checkpoint_freq=3), workspace=tmp_path, progress=False)
    with pytest.raises(UserError, match="state 'history', but the job's updater needs 'ema', 'history'"):
        train(with_ema(job), workspace=tmp_path, resume=True, progress=False)
