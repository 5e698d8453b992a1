"""Messages made in Python convert and check their values."""

import copy
import pickle

import numpy as np
import pytest

from dsinga.job import InnerProductConf, Job, JobError, LayerConf, NetConf, Phase, PoolingConf, UpdaterConf, loads
from dsinga.job.component import Settings, setting
from dsinga.job.message import Where


def test_values_are_converted_to_the_types_of_the_fields():
    layer = LayerConf(
        name="a",
        type="kInnerProduct",
        srclayers="data",
        include=("kTrain", 4),
        innerproduct_conf={"num_output": np.int64(3)},
        store_conf={"shape": np.array([1, 28, 28]), "batchsize": 8, "std_value": 255},
    )
    assert layer.type.name == "kInnerProduct"
    assert layer.srclayers == ["data"]
    assert layer.include == [Phase.kTrain, Phase.kTest]
    assert layer.innerproduct_conf == InnerProductConf(num_output=3)
    assert (layer.store_conf.shape, layer.store_conf.batchsize) == ([1, 28, 28], [8])
    assert type(layer.store_conf.std_value) is float
    assert layer.replace(include=Phase.kTrain | Phase.kTest) == layer


def test_net_is_the_short_name_of_neuralnet():
    job = Job(net=NetConf(layer=[LayerConf(name="a")]))
    assert job.net is job.neuralnet
    job.net = {"layer": [{"name": "b"}]}
    assert job.neuralnet == NetConf(layer=[LayerConf(name="b")])


def test_assignment_converts_and_checks_too():
    job = Job()
    job.updater.type = "kAdam"
    assert job.updater == UpdaterConf(type="kAdam", learning_rate={"type": "kFixed"})
    with pytest.raises(JobError, match="'train_step'; did you mean 'train_steps'"):
        job.train_step = 5
    with pytest.raises(JobError, match="Job.train_steps takes a whole number, not 0.5"):
        job.train_steps = 0.5


def test_optional_fields_may_be_none():
    assert PoolingConf(kernel=None).kernel is None
    assert LayerConf(name="a", store_conf=None) == LayerConf(name="a")


def test_the_repr_is_the_python_that_makes_the_message():
    layer = LayerConf(name="a", type="kReLU", include=["kTrain"], innerproduct_conf={"num_output": 3})
    assert repr(layer) == (
        "LayerConf(name='a', type='kReLU', include=['kTrain'], innerproduct_conf=InnerProductConf(num_output=3))"
    )
    assert eval(repr(layer)) == layer


def test_a_message_survives_pickling_copying_and_replacing_with_its_place():
    layer = loads("\nnet { layer { name: 'a'\n partition_dim: 1 } }", "job.conf").net.layer[0]
    for same in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer.replace()):
        assert same == layer
        assert same.where() == Where("job.conf", 2)
        assert same.where("partition_dim") == Where("job.conf", 3)
    copy_ = layer.replace(name="0#a", srclayer="b")
    assert (copy_.name, copy_.srclayers, copy_.where()) == ("0#a", ["b"], layer.where())
    assert (layer.name, layer.srclayers) == ("a", [])


def test_defaults_are_not_shared():
    Job().neuralnet.layer.append(LayerConf(name="a"))
    Job().updater.momentum = 0.5
    assert Job().neuralnet.layer == []
    assert Job().updater.momentum == 0.0


class Grid(Settings):
    """Settings whose defaults are not of the types of the fields, and which a method of its own completes."""

    sides: list[int] = setting(3, "the length of each side, in points")
    cell: float = setting(1, "the length of a cell, in metres")

    def __post_init__(self) -> None:
        self.cell = self.cell or 0.5


def test_defaults_are_converted_and_those_of_a_list_are_not_shared():
    Grid().sides.append(4)
    assert Grid().sides == [3]
    assert type(Grid().cell) is float
    assert Grid(cell=0).cell == 0.5

    class Plain(Settings):
        sides: list[int] = setting(3, "the length of each side, in points")
        cell: float = setting(1, "the length of a cell, in metres")

    Plain().sides.append(4)
    assert Plain().sides == [3]
    assert type(Plain().cell) is float


def test_window_gives_one_value_for_both_directions_or_one_each():
    assert PoolingConf(kernel=3).sizes("kernel", 9, 2) == (3, 3)
    assert PoolingConf(kernel_x=3, kernel_y=5).sizes("kernel", 9, 2) == (5, 3)
    assert PoolingConf(kernel_x=3).sizes("kernel", 9, 2) == (9, 3)
    assert PoolingConf().sizes("stride", 2, 2) == (2, 2)


@pytest.mark.parametrize(
    ("include", "exclude", "phases"),
    [
        ([], [], "kTrain kVal kTest"),
        (["kTrain"], [], "kTrain"),
        (["kVal", "kTest"], [], "kVal kTest"),
        ([], ["kTrain"], "kVal kTest"),
    ],
)
def test_a_layer_belongs_to_all_phases_unless_it_says_otherwise(include, exclude, phases):
    layer = LayerConf(name="a", include=include, exclude=exclude)
    assert [phase.name for phase in (Phase.kTrain, Phase.kVal, Phase.kTest) if layer.in_phase(phase)] == phases.split()


def test_none_unsets_a_field_of_a_replaced_message():
    job = Job(name="a", epochs=3, checkpoint_path=["old"], neuralnet={"layer": []})
    changed = job.replace(epochs=None, checkpoint_path=None, cluster=None)
    assert changed == Job(name="a", neuralnet={"layer": []})
    changed.checkpoint_path.append("new")
    assert job.replace(checkpoint_path=None).checkpoint_path == []
