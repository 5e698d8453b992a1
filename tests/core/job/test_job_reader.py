"""Reading a job: accepted texts, and errors with place and remedy."""

import pytest

from dsinga.job import ActivationType, Job, JobError, LayerType, Phase, PoolMethod, UpdaterType, load, loads
from dsinga.job.message import Where
from tests.support.refusals import refused

JOB = """name: "small"
train_steps:100  # no space
test_steps : 4
updater:{
  type: kSGD, momentum: 9e-1;
  learning_rate < type : kFixedStep fixedstep_conf:{ step:0 step:60 step_lr:.1 step_lr:1e-2 } >
}
neuralnet {
  layer{
    name: "data"  type: kRecordInput
    store_conf { path: "a/" 'b.bin' shape: 1 shape: 28 shape: 28 batchsize: [64, 32] }
    include: kTrain
  }
  layer {
    name: "data"
    type: 103
    store_conf { path: 'test.bin' batchsize: 100 shape: [784] has_label: f encoded: 1 }
    include: [kTest, kVal]
  }
  layer {
    name: "mine"
    user_type: "kMine"
    srclayer: "data"
    param { name: "w" init { type: kConst value:0 } }
    param { name: "b" lr_scale:2 }
  }
}
cluster { workspace: "out" }
"""


def test_a_text_with_all_spellings_of_job_files_is_read():
    job = loads(JOB)
    train, test, user_layer = job.neuralnet.layer
    assert (job.name, job.train_steps, job.test_steps, job.cluster.workspace) == ("small", 100, 4, "out")
    assert (job.updater.type, job.updater.momentum) == (UpdaterType.kSGD, 0.9)
    rate = job.updater.learning_rate
    assert rate.type.name == "kFixedStep"
    assert (rate.fixedstep_conf.step, rate.fixedstep_conf.step_lr) == ([0, 60], [0.1, 0.01])
    assert (train.store_conf.path, train.store_conf.shape) == ("a/b.bin", [1, 28, 28])
    assert (train.store_conf.batchsize, train.include) == ([64, 32], [Phase.kTrain])
    assert (test.name, test.type, test.include) == ("data", LayerType.kRecordInput, [Phase.kTest, Phase.kVal])
    assert (test.store_conf.has_label, test.store_conf.encoded) == (False, True)
    assert (user_layer.type, user_layer.type_name, user_layer.srclayers) == (LayerType.kUserLayer, "kMine", ["data"])
    assert [param.lr_scale for param in user_layer.param] == [1.0, 2.0]
    assert user_layer.param[0].init.type.name == "kConstant"


def test_fields_that_are_not_given_have_singas_defaults():
    job = loads("neuralnet { layer { name: 'p' type: kPooling pooling_conf { } activation_conf { } } }")
    layer = job.neuralnet.layer[0]
    assert (layer.pooling_conf.pool, layer.activation_conf.type) == (PoolMethod.MAX, ActivationType.RELU)
    assert layer.convolution_conf is None
    assert loads("") == Job()
    assert loads("updater { }").updater.type is UpdaterType.kUserUpdater


def test_messages_know_where_they_were_written():
    job = loads(JOB, "dir/job.conf")
    layer = job.neuralnet.layer[0]
    assert job.where() == Where("dir/job.conf", 1)
    assert layer.where() == Where("dir/job.conf", 9)
    assert layer.where("include") == Where("dir/job.conf", 12)
    assert job.updater.learning_rate.fixedstep_conf.where("step", 1) == Where("dir/job.conf", 6)
    assert layer.where("param") == layer.where()
    assert str(layer.store_conf.error("wrong", "path")) == "dir/job.conf:11: wrong"


LAYER = "net {{ layer {{ name: 'ip1'\n type: kInnerProduct\n {} }} }}"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("train_step: 1", 1, ["Job has no field 'train_step'; did you mean 'train_steps'?"]),
        ("\nmodel { }", 2, ["Job has no field 'model'; it has name, "]),
        ("updater { rho: 1 }", 1, ["UpdaterConf has no field 'rho'; it belongs in rmsprop_conf or adadelta_conf"]),
        (LAYER.format("srclayrs: 'a'"), 3, ["layer 'ip1': LayerConf has no field 'srclayrs'", "'srclayers'?"]),
        (LAYER.format("innerproduct_conf {\n num_outputs: 3 }"), 4, ["layer 'ip1': InnerProductConf", "'num_output'?"]),
        (LAYER.format("num_output: 3"), 3, ["layer 'ip1'", "'num_output'; it belongs in innerproduct_conf"]),
        (LAYER.format("innerproduct_conf { layer { } }"), 3, ["but NetConf has it: is a '}' missing before it?"]),
        (LAYER.format("param { train_steps: 1 }"), 3, ["layer 'ip1': ParamConf", "but Job has it: is a '}' missing"]),
        ("net { layer { type: kReLUU name: 'a' } }", 1, ["layer 'a'", "'kReLUU'; did you mean 'kReLU'?"]),
        (LAYER.format("include: 3"), 3, ["layer 'ip1': LayerConf.include: there is no Phase 3"]),
        (LAYER.format("include: [kTrain, kTset]"), 3, ["there is no Phase 'kTset'; did you mean 'kTest'?"]),
        ("train_steps: 1.5", 1, ["Job.train_steps takes a whole number, not 1.5"]),
        ("train_steps: true", 1, ["Job.train_steps takes a whole number, not 'true'"]),
        ("train_steps { }", 1, ["Job.train_steps takes a whole number, not a block { ... }"]),
        ("updater { momentum: high }", 1, ["UpdaterConf.momentum takes a number, not 'high'"]),
        ("updater: kSGD", 1, ["Job.updater takes a block updater { ... }, not 'kSGD'"]),
        ("debug: yes", 1, ["Job.debug takes true or false, not 'yes'"]),
        ("name: small", 1, ['Job.name takes a string: write "small", with quotes']),
        ("name: 3", 1, ["Job.name takes a string, not 3"]),
        ("seed: 1\n\nseed: 2", 3, ["Job.seed is given twice, first at job.conf:1"]),
        ("updater { }\nupdater { }", 2, ["Job.updater is given twice, first at job.conf:1"]),
        (LAYER.format("innerproduct_conf { }"), 3, ["layer 'ip1': InnerProductConf needs the field 'num_output'"]),
        ("updater { learning_rate {\nlinear_conf { } } }", 2, ["needs the fields 'change_freq' and 'final_lr'"]),
        ("net {\nlayer { type: kReLU } }", 2, ["LayerConf needs the field 'name'"]),
        (LAYER.format("relu_conf { [x]: 1 }"), 3, ["takes no extension [x]; that would be settings of a component of"]),
        ("net { layer {\n type: kLRN [lrn_cof] { } name: 'n' } }", 2, ["[lrn_cof]; did you mean 'lrn_conf'?"]),
        ("net { layer {\n [x] { } user_type: 'kMine' name: 'n' } }", 2, ["no layer is registered as 'kMine'"]),
        ("net {\n layer {\n  name: 'a'\n layer {\n }\n}", 4, ["layer 'a'", "but NetConf has it: is a '}' missing"]),
    ],
)
def test_a_mistake_is_one_message_with_its_place_and_a_remedy(text, line, expected):
    with pytest.raises(JobError) as caught:
        loads(text, "job.conf")
    assert str(caught.value).startswith(f"job.conf:{line}: ")
    assert [part for part in expected if part not in str(caught.value)] == [], str(caught.value)


def test_a_file_is_read_with_its_path(tmp_path):
    path = tmp_path / "job.conf"
    path.write_text("\ufeffname: 'é'\ntrain_steps: x", encoding="utf-8")
    with pytest.raises(JobError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    path.write_text("\ufeffname: 'é'", encoding="utf-8")
    assert load(path).name == "é"
    assert load(str(path), ["train_steps=3"]).train_steps == 3
    assert load(path).where().file == str(path)


def test_a_file_that_cannot_be_read_is_the_users_fault(tmp_path):
    refused(lambda: load(tmp_path / "none.conf"), r"cannot read the job file .*none.conf.*No such file", error=JobError)
    (tmp_path / "binary").write_bytes(b"name: '\xff'")
    refused(lambda: load(tmp_path / "binary"), "byte 7 is not UTF-8", error=JobError)
