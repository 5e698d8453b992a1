"""A loss that is not finite ends the run or, with ``skip_bad_batches``, all workers skip its batch."""

import logging.handlers
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.base.errors import Diverged
from dsinga.base.registry import register
from dsinga.checkpoint import latest, read_checkpoint, write_checkpoint
from dsinga.job import AlgConf, Job, LayerConf, PullTime, UpdatePlace
from dsinga.layers import Output
from dsinga.training.bp import bp
from tests.support.refusals import refused
from tests.support.small_job import assert_same, with_topology
from tests.support.user_layers import Identity

BAD_STEP = 7


@register("layer", "NaNFeature")
class NaNFeature(Identity):
    """An identity layer whose feature has NaN in the first row of the batch at one step."""

    def compute_feature(self, params, sources, ctx):
        feature = np.array(sources[0])
        if ctx.training and ctx.step == BAD_STEP and ctx.rows.start == 0:
            feature[0] = np.nan
        return Output(feature)


@register("layer", "NaNGradient")
class NaNGradient(Identity):
    """An identity layer whose gradient is NaN at one step, while the loss of that step is finite."""

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return (grad * np.float32(np.nan if ctx.step == BAD_STEP else 1),), ()


def with_layer(job: Job, kind: str, workers: int, servers: int = 1, **changes) -> Job:
    """Return the job with ten steps, a layer of that kind before its loss, and no batch normalisation."""
    layers = [layer for layer in job.neuralnet.layer if layer.name != "norm"]
    for layer in layers:
        layer.srclayers = [{"norm": "relu", "ip": "odd"}.get(name, name) for name in layer.srclayers]
    layers.insert(-1, LayerConf(name="odd", type="kUserLayer", user_type=kind, srclayers=["ip"]))
    net = job.neuralnet.replace(layer=layers)
    return with_topology(job.replace(neuralnet=net, train_steps=10, **changes), workers, servers)


@pytest.fixture
def dsinga_log() -> Iterator[logging.handlers.BufferingHandler]:
    """A handler that keeps what dsinga logs. That of caplog loses records: Dask's clusters raise its level."""
    handler = logging.handlers.BufferingHandler(100)
    logging.getLogger("dsinga").addHandler(handler)
    yield handler
    logging.getLogger("dsinga").removeHandler(handler)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_names_step_layer_and_checkpoint(job: Job, client: Client, tmp_path: Path, workers: int) -> None:
    job = with_layer(job, "NaNFeature", workers, checkpoint_freq=5)
    with pytest.raises(Diverged) as caught:
        train(job, client, workspace=tmp_path, progress=False)
    cause = "the loss of layer 'loss' is not finite at step 7: the feature of 'odd' is the first that is not; lower"
    assert str(caught.value).startswith(cause)
    assert str(caught.value).endswith(f"; the last good checkpoint is {tmp_path / 'checkpoint' / 'step5'}")
    assert latest(tmp_path / "checkpoint") == tmp_path / "checkpoint" / "step5"


def test_a_checkpoint_that_is_not_finite_is_neither_gone_on_from_nor_named(
    job: Job, threads: Client, tmp_path: Path
) -> None:
    root = tmp_path / "checkpoint"
    train(with_layer(job, "NaNFeature", 1, checkpoint_freq=3).replace(train_steps=6), threads, workspace=tmp_path)
    good = read_checkpoint(root / "step6")
    job = with_layer(job, "NaNFeature", 1)
    slots = {"w1": {name: array * np.float32(np.nan) for name, array in good.state["w1"].items()}}
    write_checkpoint(root, 6, good.params, good.state | slots, good.meta, good.loop)
    with pytest.raises(Diverged, match="at step 7: .*; the last good checkpoint is .*checkpoint/step3$"):
        train(job, threads, workspace=tmp_path, resume=True, progress=False)
    write_checkpoint(root, 6, good.params | {"w1": good.params["w1"] * np.inf}, good.state, good.meta, good.loop)
    refused(lambda: train(job, threads, workspace=tmp_path, resume=True, progress=False), "'w1'", "the last good")
    shutil.rmtree(root / "step3")
    refused(lambda: train(job, threads, workspace=tmp_path, resume=True, progress=False), "no checkpoint in", "finite$")


def test_a_gradient_that_is_not_finite_ends_the_run(job: Job, threads: Client, tmp_path: Path) -> None:
    job = with_layer(job, "NaNGradient", 2, checkpoint_freq=4)
    cause = "the gradient of layer 'odd' is not finite at step 7, though its feature is; guard its roots, .*"
    with pytest.raises(Diverged, match=f"{cause}; the .*checkpoint/step4$"):
        train(job, threads, workspace=tmp_path, progress=False)
    assert latest(tmp_path / "checkpoint") == tmp_path / "checkpoint" / "step4"


def overflowing(job: Job) -> Job:
    """Return the job with a learning rate by which params overflow in the first step, whose gradients are finite."""
    job = job.replace(updater=job.updater.replace(learning_rate=job.updater.learning_rate.replace(base_lr=3e38)))
    loss = job.neuralnet.layer[-1]
    job.neuralnet.layer[-1] = loss.replace(softmaxloss_conf={"scale": 1e4})
    return job


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_params_that_are_not_finite_are_not_returned(job: Job, threads: Client) -> None:
    job = overflowing(with_topology(job, 1)).replace(train_steps=1)
    refused(lambda: train(job, threads, progress=False), "is not finite after", "no checkpoint was", error=Diverged)


def test_a_metric_of_a_custom_algorithm_ends_the_run(job: Job, threads: Client) -> None:
    @register("algorithm", "InfiniteEnergy")
    def infinite_energy(net, values, records, ctx, push):
        metrics = bp(net, values, records, ctx, push)
        return {**metrics, "energy": (float("inf") if ctx.step == 3 else 1.0, 1)}

    job = with_topology(job, 2).replace(train_one_batch=AlgConf(alg="kUserAlg", user_alg="InfiniteEnergy"))
    refused(lambda: train(job, threads, progress=False), "'energy' is not finite at step 3", error=Diverged)


class TestSkipping:
    """``skip_bad_batches: true``."""

    def params_after(self, job: Job, client: Client, steps: int):
        return train(job.replace(train_steps=steps), client, progress=False).params

    @pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 2)])
    @pytest.mark.parametrize(
        ("kind", "update"), [("NaNFeature", UpdatePlace.kServer), ("NaNGradient", UpdatePlace.kWorker)]
    )
    def test_a_skipped_batch_changes_no_param(
        self, job: Job, threads: Client, dsinga_log, kind: str, workers: int, servers: int, update: UpdatePlace
    ) -> None:
        """Neither momentum nor weight decay moves a param in the skipped step."""
        job = with_layer(job, kind, workers, servers, skip_bad_batches=True)
        job.cluster.update = update
        before, after = (self.params_after(job, threads, steps) for steps in (BAD_STEP, BAD_STEP + 1))
        assert_same(after, before)
        (warning,) = dsinga_log.buffer
        sentence = "the loss, a gradient or a record of group 0 is not finite at step 7: the batch is left out"
        assert warning.getMessage() == sentence

    @pytest.mark.parametrize(
        ("client", "pull", "update"),
        [
            ("threads", PullTime.kAtOnce, UpdatePlace.kServer),
            pytest.param("threads", PullTime.kDeferred, UpdatePlace.kWorker, marks=pytest.mark.ci),
            pytest.param("processes", PullTime.kAtOnce, UpdatePlace.kServer, marks=pytest.mark.ci),
            ("processes", PullTime.kDeferred, UpdatePlace.kWorker),
        ],
        indirect=["client"],
    )
    def test_after_a_skipped_batch_any_number_of_workers_trains_alike(
        self, job: Job, client: Client, pull: PullTime, update: UpdatePlace
    ) -> None:
        """Momentum survives, and the learning rate goes by the number of the step."""
        job = with_layer(job, "NaNFeature", 1, skip_bad_batches=True, disp_freq=1, blocks=3)
        job.updater.learning_rate = job.updater.learning_rate.replace(
            type="kStep", step_conf={"gamma": 0.5, "change_freq": 3}
        )
        single = train(job, client, progress=False)
        job = with_topology(job, 3, 2)
        job.cluster.pull, job.cluster.update = pull, update
        many = train(job, client, progress=False)
        assert_same(many.params, single.params)
        assert all(np.isfinite(value).all() for value in many.params.values())
        assert abs(many.params["w1"] - self.params_after(job, client, BAD_STEP + 1)["w1"]).max() > 1e-4
        losses = {row["step"]: row.get("loss") for row in many.history}
        assert losses.pop(BAD_STEP + 1) is None
        assert all(np.isfinite(loss) for loss in losses.values())

    def test_good_batches_train_to_the_same_bits(self, job: Job, threads: Client) -> None:
        job = with_topology(job, 2).replace(train_steps=10)
        skipping = job.replace(skip_bad_batches=True)
        assert_same(*(train(conf, threads, progress=False).params for conf in (job, skipping)))

    def test_each_group_skips_its_own_batches(self, job: Job, threads: Client) -> None:
        job = with_layer(job, "NaNFeature", 1, skip_bad_batches=True)
        job.cluster = job.cluster.replace(nworker_groups=2)
        params = train(job, threads, progress=False).params
        assert all(np.isfinite(value).all() for value in params.values())

    @pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
    def test_params_that_are_not_finite_end_the_run(self, job: Job, threads: Client) -> None:
        """Every batch after them is bad: skipping would go on to the end of the run."""
        job = overflowing(with_topology(job, 2)).replace(skip_bad_batches=True)
        cause = "param '.*' is not finite at step 1, so that no batch can have a finite loss; lower the learning rate, "
        refused(lambda: train(job, threads, progress=False), cause, error=Diverged)
