"""The choice of the planner is the cheapest line of its own table, for random nets, rates and links."""

from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.addons.planner.cost_model import CostModel, PricedCuts, compared, needs_several_workers
from dsinga.addons.planner.layer_timing import LayerTime, LayerWork
from dsinga.addons.planner.link import ENDS, INSIDE, Link, Links
from dsinga.addons.planner.machine import MachineModel, Rates, work_of
from dsinga.addons.planner.processes import process_map
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.job import NetConf
from dsinga.net import NeuralNet
from dsinga.net.layer_cost import layer_cost
from tests.support.plain_nets import conv, dense, layer, mlp, net_of


def random_machine(seed: int, operations: float, rate: float) -> MachineModel:
    """Return a machine whose layers take erratic times, as measured while other work comes and goes."""

    def layer_time(work: LayerWork) -> LayerTime:
        cost = layer_cost(work.layer)
        noise = 1 + 9 * (crc32(f"{seed} {work.layer.name} {work.rows}".encode()) % 97) / 97
        share = work.rows / work.layer.shape[0]
        return LayerTime(noise * cost.forward * share / operations, noise * cost.backward * share / operations)

    def net_times(cut: PartitionedNet, worker: int) -> list[LayerTime]:
        return [layer_time(work_of(stage)) for stage in cut.locals[worker].fused.stages]

    return MachineModel(Rates(rate, rate / 3, rate / 9, rate / 9), layer_time, net_times)


@st.composite
def nets(draw: st.DrawFn) -> NeuralNet:
    """Return a random net: fully connected layers, below them a convolution or none."""
    batch = draw(st.integers(4, 32))
    widths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=3))
    if draw(st.booleans()):
        return mlp(batch, *widths, inputs=draw(st.integers(1, 300)))
    layers = [conv("conv", "data", draw(st.integers(1, 24)), 3, pad=1), dense("ip", "conv", widths[0])]
    return net_of(*layers, layer("loss", "kSoftmaxLoss", "ip", "data"), batch=batch, shape=(3, 8, 8))


@st.composite
def models(draw: st.DrawFn) -> tuple[CostModel, int]:
    """Return a cost model of a random net on random machines, and a number of workers."""
    net, workers = draw(nets()), draw(st.integers(2, 4))
    machine = random_machine(draw(st.integers(0, 999)), 10 ** draw(st.floats(7, 12)), 10 ** draw(st.floats(-11, -7)))
    wire = Link(10 ** draw(st.floats(-6, -2)), 10 ** draw(st.floats(5, 10)))
    per_process = draw(st.integers(1, 4))
    model = CostModel(net, lambda _: machine, Links(INSIDE, ENDS, wire), lambda n: process_map(n, per_process, 1))
    return model, workers


@settings(max_examples=12)
@given(models(), st.booleans())
def test_the_choice_is_the_cheapest_line_of_the_table(case: tuple[CostModel, int], one_worker: bool):
    model, workers = case
    choices = compared(model, workers, one_worker=one_worker)
    seconds = {name: choice.prediction.seconds for name, choice in choices.items()}
    lines = [seconds[name] for name in seconds if one_worker or name != "one worker"]
    assert seconds["auto"] == min(lines)
    assert {"one worker", "data", "hybrid", "feature", "layers", "auto"} <= choices.keys()
    auto = choices["auto"]
    assert auto == PricedCuts(auto.cuts, auto.workers, model.predict(auto.cuts, auto.workers))


def test_layers_that_the_job_cuts_stay_so_in_every_line():
    net = mlp(16, 64, 64, 10, inputs=64)
    machine = random_machine(1, 1e9, 1e-9)
    model = CostModel(net, lambda _: machine, Links(INSIDE, ENDS, Link(1e-4, 1e9)), lambda n: process_map(n, n, 1))
    choices = compared(model, 2, fixed={"fc0"}, one_worker=False)
    assert {choice.cuts["fc0"].dim for name, choice in choices.items() if name != "one worker"} == {0}
    assert choices["feature"].cuts["fc1"].dim == 1
    assert choices["auto"].workers == 2


def test_only_a_location_beyond_the_first_needs_several_workers():
    def conf(**more: int) -> NetConf:
        return NetConf(layer=[layer("data", "kRecordInput"), dense("ip", "data", 3, **more)])

    assert not needs_several_workers(conf())
    assert not needs_several_workers(conf(partition_dim=1))
    assert not needs_several_workers(conf(location=0))
    assert needs_several_workers(conf(location=1))
