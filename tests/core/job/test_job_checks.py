"""Errors that :func:`dsinga.job.check` finds before shapes are known."""

import pytest

from dsinga.job import Job, JobError, Phase, check, loads

JOB = """train_steps: 10
TOP
net {
  NET
  layer { name: "data" type: kRecordInput include: kTrain store_conf { path: "a" batchsize: 4 } }
  layer { name: "data" type: kRecordInput include: kTest store_conf { path: "b" batchsize: 4 } }
  layer {
    name: "ip1"
    type: kInnerProduct
    srclayers: "data"
    innerproduct_conf { num_output: 3 }
    IP1
  }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip1" srclayers: "data" }
}
"""
TOP, NET, IP1 = 2, 4, 12  # their lines


def job(top="", net="", ip1=""):
    return loads(JOB.replace("TOP", top).replace("NET", net).replace("IP1", ip1), "job.conf")


def complaint(of: Job, phases=None) -> str:
    with pytest.raises(JobError) as caught:
        check(of, phases)
    return str(caught.value)


def test_a_sound_job_passes():
    check(job())
    check(job("test_steps: 3 test_freq: 1"))
    check(job('extension { type: kEarlyStopping monitor: "val/loss" } extension { user_type: "Own" freq: 2 }'))
    check(job("updater { type: kSGD learning_rate { type: kFixedStep fixedstep_conf { step: 0 step_lr: 1 } } }"))


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ("disp_freq: -1", "disp_freq must be at least 0, not -1"),
        ("gpu: [0, -1]", "gpu must be at least 0, not -1"),
        ("updater { momentum: 0.9 }", "UpdaterConf needs its type (kSGD, kAdaGrad, kRMSProp, ...) or a user_type"),
        ('updater { type: kSGD user_type: "Lion" }', "'Lion' has no effect beside type kSGD; write type: kUserUpdater"),
        ('train_one_batch { alg: kBP user_alg: "my" }', "write alg: kUserAlg, or leave alg out"),
        ("extension { patience: 3 }", "needs its type (kEarlyStopping, kKeepBest, kReduceOnPlateau, ...)"),
        ("extension { type: kReduceOnPlateau patience: 3 }", 'type kReduceOnPlateau needs monitor: "..."'),
        ('extension { type: kKeepBest monitor: "val/loss" patience: 3 }', "kKeepBest has no field 'patience'"),
        ('extension { type: kReduceOnPlateau monitor: "val/loss" factor: 1 }', "factor must be in (0, 1), not 1.0"),
        ("extension { type: kStopOnTime }", "extension kStopOnTime needs either seconds, as in seconds: 7200, or time"),
        ('extension { type: kStopOnTime seconds: 1 time: "2h" }', "extension kStopOnTime needs either seconds"),
        ('extension { user_type: "Own" after: 3 }', "after has no effect without freq"),
        ("updater { type: kRMSProp }", "type kRMSProp needs rmsprop_conf { ... }"),
        ("updater { type: kSGD momentum: nan }", "momentum must be a number that float32 can hold, in [0, 1), not nan"),
        ("updater { type: kSGD learning_rate { base_lr: 1 } }", "LRGenConf needs its type (kFixed, "),
        ("updater { type: kSGD learning_rate { type: kStep } }", "type kStep needs step_conf { ... }"),
        (
            "updater { type: kSGD learning_rate { type: kFixedStep fixedstep_conf { step: [0, 9] step_lr: 1 } } }",
            "fixedstep_conf needs as many step as step_lr, at least one of each; it has 2 step and 1 step_lr",
        ),
        (
            "updater { type: kSGD learning_rate { type: kFixedStep fixedstep_conf { step: [] step_lr: [] } } }",
            "at least one of each; it has 0 step and 0 step_lr",
        ),
        (
            "updater { type: kSGD learning_rate { type: kFixedStep fixedstep_conf { step: [9, 9] step_lr: [1, 2] } } }",
            "the steps of fixedstep_conf must rise; 9 follows 9",
        ),
        ("train_one_batch { }", "AlgConf needs its alg (kBP, kCD, kBPTT, ...) or a user_alg"),
        ("cluster { nworkers_per_group: 0 }", "nworkers_per_group must be in [1, 100000], not 0"),
        ("cluster { nserver_groups: 2 }", "nserver_groups: 2 must divide nworker_groups: 1"),
    ],
)
def test_a_mistake_outside_the_net_is_told_with_its_line(top, expected):
    assert complaint(job(top=top)).startswith(f"job.conf:{TOP}: ")
    assert expected in complaint(job(top=top))


@pytest.mark.parametrize(
    ("ip1", "expected"),
    [
        ("dropout_conf { dropout_ratio: 1 }", "dropout_ratio must be in [0, 1), not 1.0"),
        ("pooling_conf { pad: -1 }", "pad must be in [0, 32767], not -1"),
        ("dummy_conf { shape: [3, 0] }", "shape must be at least 1, not 0"),
        ("lrn_conf { local_size: 4 }", "local_size is 4; give an odd number, for as many channels on either side"),
        ("partition_dim: 7", "partition_dim must be in [-1, 4], not 7"),
        ("store_conf { batchsize: 3 }", 'store_conf needs a path: "..."'),
        ("param { init { } }", "ParamGenConf needs its type (kConstant, kGaussian, kUniform, ...) or a user_type"),
        ("param { init { type: kUniform low: 1 high: 0 } }", "low: 1.0 is above high: 0.0"),
        ("param { type: kUser }", 'type kUser needs user_type: "..."'),
        ("shift: [1, 1]", "shift has 2 values for 1 srclayers"),
        ("include: kTrain exclude: kTest", "has both include and exclude; leave exclude out"),
    ],
)
def test_a_mistake_in_a_layer_is_told_with_layer_and_line(ip1, expected):
    assert complaint(job(ip1=ip1)).startswith(f"job.conf:{IP1}: layer 'ip1': ")
    assert expected in complaint(job(ip1=ip1))


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        ('layer { name: "x" }', "needs its type (kCSVInput, kImagePreprocess, kRecordInput, ...) or a user_type"),
        ('layer { name: "x" type: kConvolution }', "type kConvolution needs convolution_conf { ... }"),
        ('layer { name: "x" type: kInnerProduct }', "type kInnerProduct needs innerproduct_conf { ... }"),
        ('layer { name: "x" type: kCSVInput }', "type kCSVInput needs store_conf { ... }"),
        ('layer { name: "x" type: kRecordInput store_conf { path: "a" } }', "store_conf needs a batchsize, as in"),
        ('layer { name: "x" type: kReLU srclayers: "dta" }', "no layer 'dta', which it names as a source; did you"),
        ('layer { name: "x" type: kReLU srclayers: "q" }', "as a source; the layers of phase kTrain are data, ip1"),
        ('layer { name: "x" type: kReLU srclayers: "x" }', "its srclayers lead back to it in phase kTrain: x <- x"),
        ('layer { name: "x" type: kReLU } layer { name: "x" type: kReLU }', f"phase kTrain twice, first on line {NET}"),
        (
            'layer { name: "x" type: kReLU srclayers: "y" } layer { name: "y" type: kReLU srclayers: "x" }',
            "its srclayers lead back to it in phase kTrain: x <- y <- x",
        ),
    ],
)
def test_a_layer_that_does_not_fit_is_told_with_its_line(net, expected):
    assert complaint(job(net=net)).startswith(f"job.conf:{NET}: layer 'x'")
    assert expected in complaint(job(net=net))


def test_each_value_of_a_list_has_its_own_line():
    text = "net { layer { name: 'b' type: kReLU } layer { name: 'a' type: kReLU\n srclayers: 'b'\n srclayers: 'c' } }"
    assert complaint(loads(f"train_steps: 1 {text}", "f")).startswith("f:3: layer 'a': there is no layer 'c'")


def test_of_many_layers_those_with_the_nearest_names_are_listed():
    layers = "".join(f'layer {{ name: "branch_{number}" type: kReLU srclayers: "data" }}\n' for number in range(400))
    text = complaint(job(net=f'{layers} layer {{ name: "x" type: kReLU srclayers: "qqq" }}'))
    assert "there is no layer 'qqq', which it names as a source; the layers of phase kTrain are " in text
    assert text.endswith(" more")
    assert len(text) < 300


def test_a_source_of_another_phase_is_shown_where_it_is():
    message = "layer 'ip1': its source 'data' is not in phase kVal; the layer of this name on line 5 is in other phases"
    assert complaint(job("validate_steps: 3 validate_freq: 1")) == f"job.conf:10: {message}"
    check(job("validate_steps: 3"))  # never due
    check(job("validate_steps: 3 validate_freq: 1"), [Phase.kTrain, Phase.kTest])


def test_a_name_may_be_repeated_in_another_phase_only():
    both = "layer { name: 'x' type: kReLU exclude: kTest } layer { name: 'x' type: kReLU include: kTest }"
    check(job("test_steps: 1 test_freq: 1", both))
    assert "layer 'x' is in phase kTest twice" in complaint(
        job("test_steps: 1 test_freq: 1", both.replace("exclude", "include: kTrain include"))
    )


def test_the_cycle_of_a_boltzmann_machine_is_allowed():
    vis = "layer { name: 'vis' type: kRBMVis srclayers: 'data' srclayers: 'hid' rbm_conf { hdim: 3 } }"
    hid = "layer { name: 'hid' type: kRBMHid srclayers: 'vis' rbm_conf { hdim: 3 } }"
    cd = "train_one_batch { alg: kCD }"
    check(job(cd, vis + hid))
    assert "lead back" in complaint(job(cd, vis.replace("kRBMVis", "kReLU") + hid))


def test_contrastive_divergence_and_boltzmann_machines_need_each_other():
    vis = "layer { name: 'vis' type: kRBMVis srclayers: 'data' srclayers: 'hid' rbm_conf { hdim: 3 } }"
    hid = "layer { name: 'hid' type: kRBMHid srclayers: 'vis' rbm_conf { hdim: 3 } }"
    assert "layer 'vis': kRBMVis has no gradient for kBP" in complaint(job(net=vis + hid))
    assert "the net has no kRBMVis layer" in complaint(job("train_one_batch { alg: kCD }"))
    auto = "partition: auto supports back-propagation only, not kCD; leave partition out"
    assert auto in complaint(job("train_one_batch { alg: kCD }", f"partition: auto {vis} {hid}"))


def test_a_source_of_an_earlier_step_is_no_cycle():
    loop = "layer { name: 'a' type: kReLU srclayers: 'b' shift: 1 } layer { name: 'b' type: kReLU srclayers: 'a' }"
    check(job(net=loop))
    assert "lead back" in complaint(job(net=loop.replace("shift: 1", "shift: 0")))


def test_a_layer_is_placed_on_a_worker_of_the_group():
    check(job("cluster { nworkers_per_group: 2 }", ip1="location: 1"))
    message = complaint(job("cluster { nworkers_per_group: 2 }", ip1="location: 2"))
    assert message == f"job.conf:{IP1}: layer 'ip1': location must be a worker of the group, 0 to 1, not 2"
    message = complaint(job("blocks: 2", ip1="location: 2"))
    assert message == f"job.conf:{IP1}: layer 'ip1': location must be the number of a block, 0 to 1, not 2"


def test_training_needs_steps_and_testing_does_not():
    rest = JOB.replace("TOP", "").replace("NET", "").replace("IP1", "").replace("train_steps: 10", "")
    assert (
        complaint(loads(rest, "f"))
        == "f:1: the job has nothing to do: give it train_steps, as in train_steps: 1000, or epochs, as in epochs: 10"
    )
    check(loads(rest), [Phase.kTest])
    assert complaint(loads("train_steps: -3", "f")) == "f:1: train_steps must be at least 0, not -3"


def test_a_job_without_layers_is_refused():
    assert "no layers" in complaint(loads("train_steps: 1"))
    only_test = loads("train_steps: 1 net { layer { name: 'a' type: kReLU include: kTest } }", "f")
    assert complaint(only_test) == "f:1: no layer is in phase kTrain; change the include or exclude of its layers"


def test_a_job_made_in_python_is_checked_without_places():
    job_ = Job(train_steps=1, net={"layer": [{"name": "a", "type": "kReLU", "srclayers": "b"}]})
    assert complaint(job_).startswith("layer 'a': there is no layer 'b'")
    twice = {"name": "a", "type": "kReLU"}
    assert complaint(Job(train_steps=1, net={"layer": [twice, twice]})).startswith("layer 'a' is in phase kTrain twice")


def test_a_job_without_steps_is_a_net_to_look_at():
    check(
        loads("neuralnet { layer { name: 'data' type: kDummy dummy_conf { input: true shape: [2, 3] } } }"),
        [Phase.kTrain],
    )
