"""What must hold of synchronous training, whatever the topology and the transport."""

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.base.registry import register
from dsinga.job import AlgConf, Job, Settings, SlicingMethod, UpdatePlace, UpdaterConf, required, setting
from dsinga.job.limits import Count, Positive
from dsinga.layers import Output
from dsinga.training import Updater, bp
from tests.support.refusals import refused
from tests.support.small_job import assert_same, with_topology
from tests.support.user_layers import Identity, with_user_layer


def test_a_users_own_layer_and_updater_reach_other_processes(job: Job, processes: Client, threads: Client) -> None:
    """They are defined in a function, as in a notebook cell: no worker process can import them."""

    class Factor(Settings):
        factor: Count = required("the factor")

    @register("layer", "TwiceOver")
    class Twice(Identity):
        class Conf(Factor):
            power: Count = setting(1, "the power of the factor")

        def compute_feature(self, params, sources, ctx):
            return Output(self.settings.factor * sources[0])

        def compute_gradient(self, params, sources, output, grad, needs, ctx):
            return [self.settings.factor * grad], []

    @register("updater", "SignSGD")
    class SignSGD(Updater):
        class Conf(Settings):
            rate: Positive = setting(0.001, "how far a param moves in a step")

        def change(self, lr, w, g, slots, t, s):
            w -= self.settings.rate * np.sign(g)

    job = with_user_layer(job, "TwiceOver").replace(train_steps=50, updater=UpdaterConf(user_type="SignSGD"))
    job.neuralnet.layer[6].twice_conf = {"factor": 2}
    result = train(with_topology(job, 2), processes, progress=False)
    assert_same(result.params, train(with_topology(job, 2), threads, progress=False).params)
    losses = result.history.phase("train")[:, "loss"]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("method", "update"), list(zip(SlicingMethod, UpdatePlace, strict=True)))
def test_clipping_by_norm_does_not_depend_on_the_cut(
    job: Job, threads: Client, method: SlicingMethod, update: UpdatePlace
) -> None:
    """The norm is that of the gradient of the whole param, and so small that every gradient is clipped."""
    job.updater.clip_norm = 0.05
    job.train_steps, job.blocks = 10, 3
    single = train(with_topology(job, 1), threads, progress=False)
    job = with_topology(job, 3, 2)
    job.cluster.slicing, job.cluster.update = method, update
    many = train(job, threads, progress=False)
    assert_same(many.params, single.params)
    job.updater.clip_norm = 0.0
    unclipped = train(job, threads, progress=False)
    assert all(
        abs(unclipped.params[name] - single.params[name]).max() > 1e-3 for name in single.params if name[0] in "wb"
    )


def test_lasting_state_that_an_algorithm_does_not_push_stays(job: Job, threads: Client) -> None:
    @register("algorithm", "WithoutState")
    def without_state(net, values, records, ctx, push):
        return bp(net, values, records, ctx, lambda name, g: push(name, g) if net.params[name].trainable else None)

    job = job.replace(train_steps=3, train_one_batch=AlgConf(user_alg="WithoutState"))
    for workers in (1, 3):
        params = train(with_topology(job, workers), threads, progress=False).params
        lasting = [name for name in params if "mean" in name or "variance" in name]
        assert len(lasting) == 2
        for name in lasting:
            expected = 0.0 if "mean" in name else 1.0
            np.testing.assert_allclose(params[name], expected, atol=1e-6)


def test_training_starts_from_given_params(job: Job, threads: Client) -> None:
    job = with_topology(job.replace(train_steps=5), 1)
    first = train(job, threads, progress=False).params
    frozen = job.replace(updater=job.updater.replace(learning_rate={"base_lr": 0.0, "type": "kFixed"}))
    again = train(frozen, threads, params={**first, "unknown": first["w1"]}, progress=False).params
    trained = {name for name in first if name not in ("norm_mean", "norm_variance")}
    assert_same({name: again[name] for name in trained}, {name: first[name] for name in trained})
    refused(lambda: train(job, threads, params={"w1": first["w2"][0, :3]}, progress=False), "'w1'", r"net \(8, 9")
