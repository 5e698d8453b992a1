"""Receptive fields against the points of a feature that change with a point of the input, and tiles against the whole.

The oracle is the net itself: what it computes of a changed input, and of the whole field at once.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.addons.fields.prediction.tiles import AxisField, AxisTiles, cut_axis, receptive_field, whole_axis
from dsinga.job import LayerConf, Phase
from dsinga.layers import Records
from dsinga.models.blocks import conv, layer, pool
from dsinga.models.fields import unet
from dsinga.net import NeuralNet
from dsinga.net.needed_layers import needed_layers
from dsinga.passes.predictor import Predictor
from tests.support import field_layers  # noqa: F401  registers its layers
from tests.support.plain_nets import dense, net_of
from tests.support.registries import restored_registry

LENGTH = 64
Window = tuple[str, int, int, int]  # "conv" or "pool", kernel, stride, pad


@pytest.fixture(autouse=True)
def kept_registry():
    with restored_registry():
        yield


def user(name: str, user_type: str, source: str) -> LayerConf:
    return LayerConf(name=name, user_type=user_type, srclayers=[source])


def small_unet(channels: int = 4, kernel: int = 3) -> list[LayerConf]:
    """Return a net that halves a field twice, and doubles it twice, with the features before beside those after."""
    joined = {"concate_conf": {"concate_dim": 1}}
    pad = kernel // 2
    layers = [
        conv("c0", "data", channels, kernel, pad=pad), layer("r0", "kReLU", "c0"), pool("p0", "r0", kernel=2),
        conv("c1", "p0", channels, kernel, pad=pad), pool("p1", "c1", kernel=2),
        conv("c2", "p1", channels, kernel, pad=pad), user("u1", "Repeat", "c2"),
        layer("j1", "kConcate", "u1", "c1", **joined), conv("c3", "j1", channels, kernel, pad=pad),
        user("u0", "Repeat", "c3"), layer("j0", "kConcate", "u0", "r0", **joined), conv("end", "j0", 1, 1),
    ]  # fmt: skip
    return layers


def windows_net(windows: Sequence[Window], length: int) -> NeuralNet:
    layers, source = [], "data"
    for index, (kind, kernel, stride, pad) in enumerate(windows):
        name = f"l{index}"
        make = conv(name, source, 2, kernel, stride=stride, pad=pad)
        if kind == "pool":
            make = layer(name, "kPooling", source, pooling_conf={"kernel": kernel, "stride": stride, "pad": pad})
        layers.append(make)
        source = name
    return net_of(*layers, batch=1, shape=(1, length, length))


def params_of(net: NeuralNet) -> dict[str, np.ndarray]:
    """Return positive weights, so that no influence of a point is cancelled by another's."""
    rng = np.random.default_rng(0)
    return {name: rng.uniform(0.1, 1, param.shape).astype(np.float32) for name, param in net.params.items()}


def feature(net: NeuralNet, name: str, x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    predictor = Predictor(net, params, phase=Phase.kTest)
    return predictor.forward({"data": Records(x, None)}, len(x), (name,))[0][name].data


def touched(net: NeuralNet, name: str, point: int) -> np.ndarray:
    """Return the points along the last axis of the feature that a point of the input makes NaN."""
    x = np.ones((1, *net.layer("data").shape[1:]), np.float32)
    x[..., point] = np.nan
    return np.flatnonzero(np.isnan(feature(net, name, x, params_of(net))).any(axis=(0, 1, 2)))


windows = st.lists(
    st.tuples(st.sampled_from(["conv", "pool"]), st.integers(1, 4), st.integers(1, 2), st.integers(0, 1)).filter(
        lambda window: window[3] < window[1]
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, deadline=None)
@given(windows, st.integers(20, 43))
def test_a_feature_depends_on_the_points_of_its_receptive_field(windows: list[Window], point: int) -> None:
    windows = [("conv", *rest) for _, *rest in windows]  # a maximum may ignore NaN
    net, name = windows_net(windows, LENGTH), f"l{len(windows) - 1}"
    field = receptive_field(net, name)
    assert field is not None
    axis = field[1]
    points = np.arange(net.layer(name).shape[-1])
    first, last = (points * axis.stride - axis.before).astype(float), (points * axis.stride + axis.after).astype(float)
    allowed = np.flatnonzero((first <= point) & (point <= last))
    found = touched(net, name, point)
    assert set(found) <= set(allowed)
    if all(kernel >= stride for _, kernel, stride, _ in windows):  # then no point of the field is left out
        np.testing.assert_array_equal(found, allowed)


def test_known_receptive_fields() -> None:
    """Worked out by hand: 1 + Σ (kernel - 1)·stride so far; of the U-Net, 23 points around a pixel."""
    net = windows_net([("conv", 3, 1, 1), ("pool", 2, 2, 0), ("conv", 5, 1, 2), ("conv", 3, 2, 1)], 32)
    assert [axis.size for axis in receptive_field(net, "l3")] == [1 + 2 + 1 + 4 * 2 + 2 * 2] * 2
    assert [axis.stride for axis in receptive_field(net, "l3")] == [Fraction(4)] * 2
    assert [axis.alignment for axis in receptive_field(net, "l3")] == [4, 4]
    net = net_of(*small_unet(), batch=1, shape=(1, 64, 64))
    for axis in receptive_field(net, "end"):
        assert (axis.stride, axis.alignment, axis.periodic) == (1, 4, False)
        assert axis.size >= len(touched(net, "end", 32))


def test_a_layer_over_whole_fields_has_no_receptive_field() -> None:
    layers = (conv("c", "data", 2, 3), dense("ip", "c", 5))
    net = net_of(*layers, batch=1, shape=(1, 8, 8))
    assert receptive_field(net, "ip") is None
    assert receptive_field(net, "c") is not None
    net = net_of(layer("norm", "kLayerNorm", "data"), conv("c", "norm", 2, 3), batch=1, shape=(1, 8, 8))
    assert receptive_field(net, "c") is None
    net = net_of(user("w", "Wrap", "data"), conv("c", "w", 2, 3, pad=1), batch=1, shape=(1, 8, 8))
    assert receptive_field(net, "c") is None  # both kinds of padding along one axis


def cut(net: NeuralNet, name: str, core: int) -> list[AxisTiles]:
    lengths, outputs = net.layer("data").shape[2:], net.layer(name).shape[2:]
    field = receptive_field(net, name)
    assert field is not None
    return [cut_axis(*axis, core) for axis in zip(field, lengths, outputs, strict=True)]


def tiled(layers: list[LayerConf], x: np.ndarray, core: int) -> tuple[np.ndarray, np.ndarray, list[AxisTiles]]:
    """Return the feature of the last layer computed whole, and put together of tiles, and these."""
    name = layers[-1].name
    net = net_of(*layers, batch=1, shape=x.shape[1:])
    params = params_of(net)
    whole = feature(net, name, x, params)
    together = np.full(whole.shape, np.nan, np.float32)
    rows, columns = cut(net, name, core)
    tile_net = net_of(*layers, batch=1, shape=(x.shape[1], rows.size, columns.size))
    for a in rows:
        for b in columns:
            points = [np.arange(tile.start, tile.start + tile.size) for tile in (a, b)]
            part = x[:, :, points[0] % x.shape[2]][:, :, :, points[1] % x.shape[3]]
            y = feature(tile_net, name, part, params)
            inner = y[:, :, a.skip : a.skip + a.stop - a.first, b.skip : b.skip + b.stop - b.first]
            together[:, :, a.first : a.stop, b.first : b.stop] = inner
    return whole, together, [rows, columns]


def test_tiles_have_one_size_also_where_the_field_has_a_remainder() -> None:
    """A field of 61 points is halved to 30, and a tile leaves the same remainder, so that both are divided alike."""
    x = np.random.default_rng(1).normal(size=(1, 1, 61, 83)).astype(np.float32)
    layers = [
        conv("c0", "data", 2, 3, pad=1), pool("p", "c0", kernel=2), conv("c1", "p", 2, 3), user("end", "Repeat", "c1"),
    ]  # fmt: skip
    whole, together, axes = tiled(layers, x, 8)
    np.testing.assert_array_equal(together, whole)
    assert [axis.size % 2 for axis in axes] == [1, 1]
    assert all(len(axis) > 3 for axis in axes)


def test_tiles_of_a_net_that_crops_and_of_a_periodic_one() -> None:
    x = np.random.default_rng(1).normal(size=(1, 1, 40, 60)).astype(np.float32)
    valid = [conv("c0", "data", 2, 5), layer("r", "kReLU", "c0"), conv("end", "r", 1, 3)]
    whole, together, axes = tiled(valid, x, 10)
    np.testing.assert_array_equal(together, whole)
    assert [axis.size for axis in axes] == [16, 16]  # 10 points, and 6 on which these depend beside
    periodic = [user("w", "Wrap", "data"), conv("end", "w", 2, 5)]
    whole, together, axes = tiled(periodic, x, 10)
    np.testing.assert_array_equal(together, whole)
    assert [axis.periodic for axis in axes] == [False, True]
    assert (axes[1].tile(0).start, len(axes[1])) == (-2, 6)


@pytest.mark.parametrize("padding", ["zero", "reflect", ("edge", "periodic")])
def test_tiles_of_the_ready_unet_give_the_whole_field(padding: Any) -> None:
    """Of two levels: tiles begin at multiples of 4, and where longitude is periodic they go on at the other edge."""
    conf = unet((2, 16, 16), width=3, depth=2, padding=padding, normalisation="batch").job().neuralnet
    layers = needed_layers(conf, Phase.kTest, ("output",)).layer[1:]
    x = np.random.default_rng(1).normal(size=(1, 2, 60, 64)).astype(np.float32)
    whole, together, axes = tiled(layers, x, 8)
    np.testing.assert_array_equal(together, whole)
    assert all(len(axis) == -(-axis.length // 8) for axis in axes)
    assert [axis.periodic for axis in axes] == [False, isinstance(padding, tuple)]


GROWTH = [
    layer("grow", "kUpsampling", "p", upsampling_conf={"factor": [2], "method": "kNearest"}),
    layer("grow", "kUpsampling", "p", upsampling_conf={"factor": [2], "method": "kLinear"}),
    *(
        layer("grow", "kTransposedConvolution", "p", transposedconvolution_conf={"num_filters": 2, **conf})
        for conf in (
            {"kernel": 2, "stride": 2},
            {"kernel": 4, "stride": 2, "pad": 1},
            {"kernel": 3, "stride": 2, "pad": 1, "output_pad": 1},
            {"kernel": 3, "stride": 2, "same": True},
            {"kernel": 5, "stride": 2, "same": True},
        )
    ),
]


@pytest.mark.parametrize("grow", GROWTH)
def test_tiles_of_layers_that_make_fields_larger(grow: LayerConf) -> None:
    """Kernels of transposed convolutions may add up in another order in tiles than in the larger field."""
    layers = [
        conv("c0", "data", 2, 3, pad=1), conv("p", "c0", 2, 3, stride=2, pad=1), grow, conv("end", "grow", 1, 3, pad=1),
    ]  # fmt: skip
    x = np.random.default_rng(1).normal(size=(1, 1, 48, 36)).astype(np.float32)
    whole, together, axes = tiled(layers, x, 8)
    np.testing.assert_allclose(together, whole, rtol=1e-5, atol=1e-4)
    assert all(len(axis) > 3 for axis in axes)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_point_is_of_one_tile_which_has_what_it_depends_on(data: st.DataObject) -> None:
    """The arithmetic alone, for random fields: numpy counts how often each point is given."""
    step, periodic = data.draw(st.sampled_from([1, 2, 4, 8])), data.draw(st.booleans())
    before, after = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))
    cropped = 0 if periodic else data.draw(st.integers(0, 20))
    length, margins = data.draw(st.integers(cropped + 1, 400)), (0, 0)
    core = step * data.draw(st.integers(1, 12))
    if not periodic and data.draw(st.booleans()):
        margins = data.draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))
    field = AxisField(Fraction(1), before, after, step, before, after, periodic)
    tiles = cut_axis(field, length, length - cropped, core, margins)
    given = np.zeros(tiles.points, int)
    for tile in tiles:
        given[tile.first : tile.stop] += 1
        assert tile.size == tiles.size
        if tile.first >= tile.stop:
            continue
        assert tile.skip == tile.first - margins[0] - tile.start
        if len(tiles) == 1:
            assert (tile.start, tile.size) == (0, length)
            continue
        assert tile.start % step == 0
        assert periodic or 0 <= tile.start <= length - tile.size
        at_start, at_end = (not periodic and end for end in (tile.start == 0, tile.start + tile.size == length))
        assert tile.skip >= (0 if at_start else before)
        assert tile.skip + tile.stop - tile.first <= tile.size - cropped - (0 if at_end else after)
    assert (given[margins[0] : tiles.points - margins[1]] == 1).all()
    assert given.sum() == length - cropped
    assert sum(tiles.chunks) == tiles.points == length - cropped + sum(margins)
    assert len(set(tiles.chunks[:-1])) <= 1
    assert tiles.chunks[-1] <= tiles.chunks[0]


def test_a_whole_axis_is_one_tile() -> None:
    assert list(whole_axis(10, 8)) == [(0, 10, 0, 0, 8)]
    assert list(whole_axis(10, 8, (1, 3))) == [(0, 10, 0, 1, 9)]
    assert whole_axis(10, 8, (1, 3)).chunks == (12,)
