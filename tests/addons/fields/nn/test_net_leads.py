"""Nets trained on several leads: gradients of PyTorch's unrolled loop, cuts by space, fewer leads at first, memory."""

import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr

import dsinga
from dsinga import nn
from dsinga.addons.fields.lead_plan import unroll_leads
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.base.errors import UserError
from dsinga.cutting.partitioned import WHOLE_LAYER, LayerCut
from dsinga.cutting.partitioning import partition
from dsinga.cutting.strategy import choose_cuts
from dsinga.job import Job, LayerType, Phase
from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import bp
from tests.support.later_import import functional, torch
from tests.support.partitioned_run import (
    DoubleOps,
    Values,
    assert_equal_runs,
    initial,
    run_partitioned,
    run_whole,
)
from tests.support.refusals import refused

STEPS, LATS, LONS = 24, 6, 8
MODES = {"zero": "constant", "edge": "replicate", "periodic": "circular", "reflect": "reflect"}


def weather(seed: int = 0, levels: int = 2, land: bool = False) -> xr.Dataset:
    """Return z by level and t, which are predicted, the forcing f, and the static field h."""
    rng = np.random.default_rng(seed)

    def field(*dims: str) -> Any:
        sizes = {"time": STEPS, "level": levels, "lat": LATS, "lon": LONS}
        return dims, rng.normal(size=[sizes[dim] for dim in dims]).astype(np.float32)

    space = "lat", "lon"
    fields = {"t": field("time", *space), "z": field("time", "level", *space), "f": field("time", *space)}
    dates = np.datetime64("2000-01-01", "ns") + np.arange(STEPS) * np.timedelta64(6, "h")
    coordinates = {"time": dates, "level": np.arange(levels), "lat": np.linspace(60, -60, LATS), "lon": np.arange(LONS)}
    dataset = xr.Dataset({**fields, "h": field(*space)}, coordinates)
    if land:
        dataset["t"] = dataset.t.where(xr.DataArray(rng.uniform(size=(LATS, LONS)) > 0.3, dims=space))
    return dataset


class Drawn(NamedTuple):
    """A random net of convolutions, its data and its windows."""

    data: xr.Dataset
    windows: FieldWindows
    job: Job
    before: int  # steps of context
    edges: tuple[str, str]
    kernels: tuple[int, ...]
    forced: bool
    weights: tuple[float, ...]


def draw(seed: int, leads: int, **more: Any) -> Drawn:
    rng = np.random.default_rng(seed)
    before, depth, forced, space = (int(rng.integers(high)) for high in (3, 3, 2, 2))
    edges = tuple(str(edge) for edge in rng.choice([*MODES], 2))
    weights = tuple(float(weight) for weight in rng.uniform(0.2, 1, leads)) if leads > 1 and rng.integers(2) else ()
    data = weather(seed)
    windows = dsinga.windows(
        data, inputs=["z", "t", "f"] if forced else ["z", "t"], targets=["t", "z"], static=["h"],
        coordinates=["cos(hour of day)"], input_dims={"time": 1, "lat": -1, "lon": -1},
        context={"time": (before, 0), "lat": space, "lon": space}, edges=dict(zip(("lat", "lon"), edges, strict=True)),
        lead={"time": 1}, **({"leads": leads, "lead_weights": weights or None} if leads > 1 else {}), **more,
    )  # fmt: skip
    x = nn.Input(windows.shape)
    h, kernels = x, [1 + 2 * space] + [3] * depth
    for kernel in kernels:  # the first one needs the context of windows
        padding = "valid" if kernel == kernels[0] and h is x else "same"
        h = nn.Conv2D(4, kernel, padding=padding, activation="tanh")(h)
    model = nn.Model(x, nn.Conv2D(3, 1)(h))
    model.compile("sgd", "mse")
    return Drawn(data, windows, model.job(windows, batch_size=4), before, edges, tuple(kernels), bool(forced), weights)


def net_of(job: Job) -> NeuralNet:
    return CheckedJob(job).net(Phase.kTrain)


def batch_of(windows: FieldWindows, rows: int = 4) -> dict[str, Records]:
    x, y = windows.read(np.arange(rows) * 3)
    return {"data": Records(x.astype(np.float64), y)}


def unrolled(drawn: Drawn, params: dict[str, Any], leads: int) -> Any:
    """Return the loss of PyTorch's loop over leads, which reads all its fields from the Dataset."""
    data, before = drawn.data, drawn.before
    starts = drawn.windows.positions(np.arange(4) * 3)["time"]
    known = {name: torch.tensor(np.asarray(data[name].values, np.float64)) for name in ("t", "z", "f", "h")}
    hours = torch.tensor(np.cos(np.arange(STEPS) * np.pi / 2).astype(np.float32).astype(np.float64))
    pad = drawn.windows.layout.axes["lat"].before
    losses = []
    for start in starts.tolist():
        t = {start - back: known["t"][start - back] for back in range(before + 1)}
        z = {start - back: known["z"][start - back] for back in range(before + 1)}
        for lead in range(1, leads + 1):
            now = start + lead - 1
            times = range(now - before, now + 1)
            channels = [z[time][level] for level in range(2) for time in times] + [t[time] for time in times]
            channels += [known["f"][time] for time in times] if drawn.forced else []
            x = torch.stack([*channels, known["h"]])[None]
            for sides, edge in zip(((0, 0, pad, pad), (pad, pad, 0, 0)), drawn.edges, strict=True):
                x = functional.pad(x, sides, MODES[edge]) if pad else x
            x = torch.cat([x, *(hours[time].expand(1, 1, *x.shape[2:]) for time in times)], 1)
            for number, kernel in enumerate(drawn.kernels):
                weight, bias = (params[f"conv2d{'' if not number else f'_{number}'}_{r}"] for r in ("weight", "bias"))
                weight = weight.reshape(len(weight), -1, kernel, kernel)
                x = torch.tanh(functional.conv2d(x, weight, bias, padding=kernel // 2 if number else 0))
            number = len(drawn.kernels)
            weight, bias = (params[f"conv2d_{number}_{role}"] for role in ("weight", "bias"))
            t[now + 1], z[now + 1] = (y := functional.conv2d(x, weight[..., None, None], bias)[0])[0], y[1:]
            truth = torch.cat([known["t"][now + 1][None], known["z"][now + 1]])
            losses.append((y - truth).square().mean())
    weights = torch.tensor(drawn.weights or (1.0,) * leads, dtype=torch.float64)
    return (torch.stack(losses).reshape(4, leads) * weights / weights.sum()).sum(1).mean()


SEEDS = [seed if seed < 4 else pytest.param(seed, marks=pytest.mark.ci) for seed in range(20)]


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_those_of_the_unrolled_loop(seed: int) -> None:
    for leads in (1, 2, 4):
        drawn = draw(seed, leads)
        net = net_of(drawn.job)
        values, pushed = initial(net), Values()
        ctx = Context(DoubleOps(), net.phase, Rows(0, 4, 4))
        metrics = bp(net, values, batch_of(drawn.windows), ctx, pushed.__setitem__)
        params = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
        loss = unrolled(drawn, params, leads)
        loss.backward()
        assert abs(metrics["loss"][0] / metrics["loss"][1] - float(loss.detach())) < 1e-10
        assert pushed.keys() == params.keys()
        for name, param in params.items():
            np.testing.assert_allclose(pushed[name].reshape(param.shape), param.grad, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(("dim", "grid"), [(0, ()), (1, ()), (2, (2,)), (2, (2, 2))])
def test_cuts_compute_the_whole_net(dim: int, grid: tuple[int, ...]) -> None:
    """Fewer leads are trained at first; each worker then sends and waits for what these need."""
    drawn = draw(1, 3, lead_start=[0, 1, 1])
    net = net_of(drawn.job.replace(neuralnet=drawn.job.neuralnet.replace(partition_dim=dim, partition_grid=list(grid))))
    cut = partition(net, int(np.prod(grid or 2)))
    assert {(each.dim, len(each.grid)) for name, each in cut.cuts.items() if "conv2d" in name} == {(dim, len(grid))}
    values, batches = initial(net), [batch_of(drawn.windows)] * 3
    whole = run_whole(net, values, batches)
    assert_equal_runs(run_partitioned(cut, values, batches), whole, 1e-11)
    assert ["lead2#loss/loss" in metrics for metrics in whole.metrics] == [False, True, True]


def test_a_worker_may_compute_a_lead_alone() -> None:
    """Its records and labels are sent to it, as the planner may want it."""
    net = net_of(draw(1, 3).job)
    whole = LayerCut(WHOLE_LAYER, location=1)
    cuts = {name: whole if name.startswith("lead2#") else cut for name, cut in choose_cuts(net, 2).items()}
    values, batches = initial(net), [batch_of(draw(1, 3).windows)]
    cut = partition(net, 2, cuts=cuts)
    assert_equal_runs(run_partitioned(cut, values, batches), run_whole(net, values, batches), 1e-11)


@pytest.mark.ci
def test_recomputed_leads_have_the_same_bits_in_memory_that_leads_do_not_add_to() -> None:
    def trained(leads: int, recompute: int) -> tuple[Values, int]:
        windows = dsinga.windows(
            weather(levels=1),
            inputs=["t", "f"],
            targets="t",
            input_dims={"time": 1, "lat": -1, "lon": -1},
            context={"time": (1, 0)},  # an input of a lead is the prediction of two leads before
            lead={"time": 1},
            leads=leads,
        )
        x = nn.Input(windows.shape)
        h = x
        for _ in range(3):
            h = nn.Conv2D(32, 3, padding="same", activation="tanh")(h)
        model = nn.Model(x, nn.Conv2D(1, 1)(h))
        model.compile("sgd", "mse")
        job = model.job(windows, batch_size=8)
        net = net_of(job.replace(neuralnet=job.neuralnet.replace(recompute=recompute)))
        values, batch, pushed = initial(net), batch_of(windows, 6), Values()
        net.stages  # noqa: B018  built before
        tracemalloc.start()
        try:
            bp(net, values, batch, Context(DoubleOps(), net.phase, Rows(0, 6, 6)), pushed.__setitem__)
            return pushed, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    kept, most = trained(6, 0)
    again, least = trained(6, 2)
    assert kept.keys() == again.keys()
    for name, gradient in kept.items():
        np.testing.assert_array_equal(again[name], gradient, err_msg=name)
    (_, most_of_two), (_, least_of_two) = trained(2, 0), trained(2, 2)
    assert least < 1.1 * least_of_two
    assert least - least_of_two < 0.15 * (most - most_of_two), "four more leads"


def test_nets_that_cannot_feed_back_are_refused() -> None:
    drawn = draw(0, 2)
    loss = next(layer for layer in drawn.job.neuralnet.layer if layer.type is LayerType.kEuclideanLoss)

    def with_layer(**changes: Any) -> NeuralNet:
        layers = [*drawn.job.neuralnet.layer, loss.replace(name="other", **changes)]
        return net_of(drawn.job.replace(neuralnet=drawn.job.neuralnet.replace(layer=layers)))

    refused(lambda: with_layer(srclayers=["data", loss.srclayers[1]]), "losses compare", "give all losses")
    refused(lambda: with_layer(type=LayerType.kDiceLoss, euclideanloss_conf=None), "'other'", "feeds one num")
    layers = [each.replace(type=LayerType.kCRF) if each is loss else each for each in drawn.job.neuralnet.layer]
    plan, names = drawn.windows.leads, {layer.name for layer in layers} - {"data"}
    assert plan is not None
    with pytest.raises(UserError, match="'loss': kCRF has no factor"):
        unroll_leads([layer for layer in layers if layer.in_phase(Phase.kTrain)], names, "data", plan, 2)
