"""What ``job`` refuses: each mistake in a line, with the name and the remedy that its error must have."""

from pathlib import Path
from typing import Any

import pytest

from dsinga import register
from dsinga.job import GRUConf, InnerProductConf, Job, JobError, LayerConf, LSTMConf, Phase, check, load, loads
from dsinga.job.textformat import parse_value
from tests.support.refusals import check_refusal, refusal
from tests.support.registries import restored_registry

MANY = {"nworker_groups": 1000, "nworkers_per_group": 1000}
RATE = "learning_rate { type: kFixed base_lr: 0,03 }"
ACTIVE = 'layer { name: "ip" type: kInnerProduct innerproduct_conf { num_output: 3 activation: kReLU } }'
MISTAKES = [
    refusal(lambda: job_with_a_field_of_no_class(), "the message Job", "register a sub"),
    refusal(lambda: check(Job(train_steps=1, cluster=MANY)), "nworkers_per_group", "more than 100,000", error=JobError),
    refusal(lambda: check(chain("conv")), "'relu1': there is no layer 'conv'", "did you mean 'conv1'", error=JobError),
    refusal(lambda: LayerConf(type="kReLU"), "'name'", "needs the field"),
    refusal(lambda: LayerConf(name="a", type="kRelu"), "'kRelu'", "did you mean 'kReLU'"),
    refusal(lambda: Job(updater={"type": "kADAM"}), "'kADAM'", "did you mean 'kAdam'"),
    refusal(lambda: LayerConf(name="a", type="Swoosh"), "'Swoosh'", "name a class"),
    refusal(lambda: GRUConf(dim_hidden=3, gate_activation="sigmoid"), "'sigmoid'", "did you mean 'SIGMOID'"),
    refusal(lambda: LSTMConf(dim_hidden=3, cell_activation="swish"), "'swish'", "these are SIGMOID"),
    refusal(lambda: LayerConf(name="a", type=True), "there is no LayerType True"),
    refusal(lambda: LayerConf(name="a", include=[Phase.kTrain | Phase.kTest]), "there is no Phase"),
    refusal(lambda: LayerConf(name=3), "LayerConf", "string, not 3"),
    refusal(lambda: LayerConf(name="a", innerproduct_conf=3), "InnerProductConf", "not 3"),
    refusal(lambda: InnerProductConf(num_output=True), "takes a whole number", "not True"),
    refusal(lambda: InnerProductConf(num_output=3, bias_term=1), "takes true or false, not 1"),
    refusal(lambda: InnerProductConf(num_output=[3]), "takes a whole number", "not [3]"),
    refusal(lambda: LayerConf(name="a", type="kConv2D"), "'kConv2D'", "write kConvolution"),
    refusal(lambda: LayerConf(name="a", type="kDense"), "'kDense'", "write kInnerProduct"),
    refusal(lambda: loads("updater { learning_rate: 0.05 }"), "not 0.05", "{ type: kFixed base_lr: 0.05 }"),
    refusal(lambda: loads("train_steps: 5 // few"), "'/'", "comments begin with #"),
    refusal(lambda: load("digit/job.conf"), "no folder 'digit' in the", "dsinga example digits digits", error=JobError),
    refusal(lambda tmp_path: load(file(tmp_path, "a.conf").with_suffix("")), "mean", "/a.conf'?", error=JobError),
    refusal(lambda tmp_path: load(file(tmp_path, "x.py")), "x.py:1", "give one, such as job.conf"),
    refusal(lambda tmp_path: load(store(tmp_path)), "is a store", "dsinga data info", error=JobError),
    refusal(lambda: load("train_steps: 3\n"), "the text of a job", "dsinga.loads(text)", error=JobError),
    refusal(lambda: loads("points.conf"), "is a path", "dsinga.load('points.conf')", error=JobError),
    refusal(lambda: loads(f"updater {{ {RATE} }}"), "numbers have a point", "0.03", error=JobError),
    refusal(lambda: loads(f"neuralnet {{ {ACTIVE} }}"), "'activation'", 'srclayers: "ip"', error=JobError),
    refusal(lambda: Job().train(), "no 'train'", "dsinga.train(job)", error=AttributeError),
    refusal(lambda: parse_value("", "--set x"), "--set x", error=JobError),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)


def file(folder: Path, name: str) -> Path:
    (folder / name).write_text("import numpy")
    return folder / name


def store(folder: Path) -> Path:
    (folder / "zarr.json").write_text("{}")
    return folder


def job_with_a_field_of_no_class() -> Job:
    """Return a job with a message that is registered as a function."""
    with restored_registry():
        register("message", "Job.own")(lambda: None)
        return Job(own={})


def chain(source: str) -> Job:
    """Return a job of four layers, the second of which has this source."""
    layers = {"conv1": [], "relu1": [source], "conv2": ["relu1"], "relu2": ["conv2"]}
    confs = [LayerConf(name=name, type="kReLU", srclayers=sources) for name, sources in layers.items()]
    return Job(train_steps=1, neuralnet={"layer": confs})
