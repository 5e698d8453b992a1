"""Overrides of a job by ``--set path=value``."""

import numpy as np
import pytest

from dsinga.data import open_records
from dsinga.job import ChangeMethod, JobError, LayerType, PoolMethod, UpdaterType, loads, to_text
from dsinga.job.reader import with_fields
from tests.support.refusals import refused_with

JOB = """name: "small"
train_steps: 10
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "a" shape: [1, 8, 8] batchsize: 4 } include: kTrain }
  layer { name: "data" type: kRecordInput store_conf { path: "b" shape: [1, 8, 8] batchsize: 4 } exclude: kTrain }
  layer { name: "pool.1" type: kPooling srclayers: "data" }
  layer {
    name: "ip1" type: kInnerProduct srclayers: "pool.1" innerproduct_conf { num_output: 3 }
    param { name: "w1" } param { name: "b1" init { type: kConstant } }
  }
  layer { name: "mine" user_type: "kMine" srclayers: "ip1" }
}
"""


def changed(*overrides):
    return loads(JOB, "job.conf", overrides)


def layer(job, position):
    return job.neuralnet.layer[position]


@pytest.mark.parametrize(
    ("override", "of", "value"),
    [
        ("train_steps=5", lambda job: job.train_steps, 5),
        ("train_steps = 0x10 ", lambda job: job.train_steps, 16),
        ("debug=true", lambda job: job.debug, True),
        ("name=new name", lambda job: job.name, "new name"),
        ("name='it''s'", lambda job: job.name, "its"),
        ("name=5", lambda job: job.name, "5"),
        ("name=", lambda job: job.name, ""),
        ("name=a=b", lambda job: job.name, "a=b"),
        ("updater.momentum=.5", lambda job: job.updater.momentum, 0.5),
        ("cluster.workspace=/tmp/x", lambda job: job.cluster.workspace, "/tmp/x"),
        ("gpu=[0, 1]", lambda job: job.gpu, [0, 1]),
        ("gpu=2", lambda job: job.gpu, [2]),
        ("checkpoint_path=a,b", lambda job: job.checkpoint_path, ["a,b"]),
        ("checkpoint_path=['a', \"b\"]", lambda job: job.checkpoint_path, ["a", "b"]),
        ("net.layer[2].pooling_conf.pool=AVG", lambda job: layer(job, 2).pooling_conf.pool, PoolMethod.AVG),
        ("net.layer[pool.1].pooling_conf.kernel=2", lambda job: layer(job, 2).pooling_conf.kernel, 2),
        ("net.layer[ip1].type=kReLU", lambda job: layer(job, 3).type, LayerType.kReLU),
        ("net.layer[ip1].srclayer=data", lambda job: layer(job, 3).srclayers, ["data"]),
        ("net.layer[ip1].param[1].lr_scale=2", lambda job: layer(job, 3).param[1].lr_scale, 2.0),
        ("net.layer[ip1].param[w1].init.std=3", lambda job: layer(job, 3).param[0].init.std, 3.0),
        ("net.layer[ip1].param[w1]={name: 'w'}", lambda job: layer(job, 3).param[0].name, "w"),
        ("net.layer[data,kTrain].store_conf.path=x/y.zarr", lambda job: layer(job, 0).store_conf.path, "x/y.zarr"),
        ("net.layer[data, kTest].store_conf.path=x", lambda job: layer(job, 1).store_conf.path, "x"),
        ("net.layer[data,kVal].store_conf.shape[1]=4", lambda job: layer(job, 1).store_conf.shape, [1, 4, 8]),
        ("net.layer[data,kTrain].store_conf.shape=64", lambda job: layer(job, 0).store_conf.shape, [64]),
    ],
)
def test_a_field_is_found_by_its_path(override, of, value):
    job = changed(override)
    assert job != loads(JOB)
    got = of(job)
    assert got == value
    assert type(got) is type(value)


def test_nothing_else_changes():
    assert changed("seed=3") == loads(f"{JOB} seed: 3")
    assert changed() == loads(JOB)


def test_messages_of_the_path_have_the_defaults_of_the_job():
    updater = changed("updater.learning_rate.base_lr=0.5").updater
    assert (updater.type, updater.learning_rate.type) == (UpdaterType.kSGD, ChangeMethod.kFixed)
    assert updater.learning_rate.base_lr == 0.5
    assert loads(JOB).updater.learning_rate.base_lr == 0.01


def test_several_overrides_supply_what_the_text_lacks():
    rate = "updater.learning_rate"
    job = changed(f"{rate}.type=kLinear", f"{rate}.linear_conf.change_freq=3", f"{rate}.linear_conf.final_lr=0.1")
    assert job.updater.learning_rate.linear_conf.final_lr == 0.1
    assert loads("net { layer { type: kReLU } }", "f", ["net.layer[0].name=a"]).net.layer[0].name == "a"


def test_later_messages_name_the_override_as_the_place():
    job = changed("train_steps=-5", "net.layer[ip1].srclayers=dta")
    assert str(job.error("wrong", "train_steps")) == "--set train_steps=-5: wrong"
    assert str(layer(job, 3).error("wrong", "srclayers")) == "--set net.layer[ip1].srclayers=dta: wrong"
    assert str(layer(job, 3).error("wrong", "type")).startswith("job.conf:8: ")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("updater.learning_rat.base_lr=1", "UpdaterConf has no field 'learning_rat'; did you mean 'learning_rate'?"),
        ("updater.learning_rate.base_lr=fast", "LRGenConf.base_lr takes a number, not 'fast'"),
        ("updater.learning_rate=0.1", "UpdaterConf.learning_rate takes a block learning_rate { ... }, not 0.1"),
        ("updater.type=kAdamm", "there is no UpdaterType 'kAdamm'; did you mean 'kAdam'?"),
        ("train_steps", "expected path=value, as in updater.learning_rate.base_lr=0.1"),
        ("updater..type=3", "expected path=value"),
        ("train_steps[0]=3", "Job.train_steps has one value only: leave out [0]"),
        ("train_steps.x=3", "Job.train_steps is a single value and has no fields"),
        ("net.layer.name=x", "NetConf.layer has several values: write layer[0] or layer[data] to choose one"),
        ("net.layer[9].name=x", "there is no layer[9]; NetConf.layer has 5 values, counted from 0"),
        ("net.layer[ip2].name=x", "there is no layer[ip2]; did you mean 'ip1'?"),
        ("net.layer[data].name=x", "2 values are called layer[data]: write layer[data,kTrain], or another phase"),
        ("net.layer[data,kTrian].name=x", "there is no Phase 'kTrian'; did you mean 'kTrain'?"),
        ("net.layer[ip1].param[w1,kTrain].name=x", "only layers have phases: leave out 'kTrain'"),
        ("gpu[0]=1", "there is no gpu[0]; Job.gpu has 0 values"),
        ("updater.rmsprop_conf={ }", "RMSPropConf needs the field 'rho'"),
    ],
)
def test_a_mistake_names_the_path_and_the_nearest_field(override, expected):
    with pytest.raises(JobError) as caught:
        changed(override)
    assert str(caught.value).startswith(f"--set {override}: ")
    assert expected in str(caught.value)


def test_a_layer_that_is_not_in_the_phase_is_refused():
    with pytest.raises(JobError, match=r"layer\[ip1\] is not in phase kVal"):
        loads("net { layer { name: 'ip1' include: kTrain } }", "f", ["net.layer[ip1,kVal].name=x"])


def test_fields_of_a_job_are_changed_to_values_of_python():
    job = changed()
    fields = {
        "train_steps": np.int64(7), "updater.type": "kAdam", "updater.learning_rate.base_lr": np.float32(0.25),
        "gpu": (0, 1), "net.layer[ip1].innerproduct_conf.num_output": 9,
        "net.layer[data,kTest].store_conf.path": "c, d",
        "updater.learning_rate.step_conf": {"gamma": 0.5, "change_freq": 3}, "debug": True,
    }  # fmt: skip
    new = with_fields(job, fields)
    assert new.train_steps == 7
    assert new.updater.type is UpdaterType.kAdam
    assert new.updater.learning_rate.base_lr == 0.25
    assert new.updater.learning_rate.step_conf.change_freq == 3
    assert new.gpu == [0, 1]
    assert new.debug is True
    assert layer(new, 3).innerproduct_conf.num_output == 9
    assert [layer(new, n).store_conf.path for n in (0, 1)] == ["a", "c, d"]
    assert to_text(job) == to_text(changed()), "the job itself is as it was"
    assert new == loads(to_text(new)), "the other fields are those of the job"


def test_a_job_with_other_fields_keeps_its_records_and_its_places():
    job = changed()
    records = open_records(np.zeros((4, 1, 8, 8)))
    store = layer(job, 0).store_conf.replace(records=records)
    layers = [layer(job, 0).replace(store_conf=store), *job.neuralnet.layer[1:]]
    job = job.replace(neuralnet=job.neuralnet.replace(layer=layers))
    new = with_fields(job, {"net.layer[data,kTrain].store_conf.batchsize": 2})
    assert layer(new, 0).store_conf.records is records
    assert layer(new, 0).store_conf.batchsize == [2]
    assert layer(new, 3).where("type").line == job.neuralnet.layer[3].where("type").line
    assert str(layer(new, 0).store_conf.error("fault", "batchsize")).startswith("net.layer[data,kTrain].")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"updater.momentumm": 1}, "updater.momentumm=1: UpdaterConf has no field 'momentumm'; did you mean"),
        ({"net.layer[ip2].name": "x"}, "net.layer[ip2].name=x: there is no layer[ip2]; did you mean 'ip1'"),
        ({"seed": 0.5}, "seed=0.5: Job.seed takes a whole number, not 0.5"),
        ({"seed": None}, "a job in text format cannot hold None"),
    ],
)
def test_fields_and_values_that_there_are_not_are_refused_by_their_path(fields, message):
    refused_with(lambda: with_fields(changed(), fields), message, error=JobError)
