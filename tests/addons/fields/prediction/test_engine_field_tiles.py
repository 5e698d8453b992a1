"""The tiles that follow from a net and a field, and the fields that a net cannot compute."""

import math

import numpy as np
import pytest

from dsinga.addons.fields.prediction import tiles as field_tiles
from dsinga.addons.fields.prediction.tiles import plan_tiles
from dsinga.job import LayerConf
from dsinga.models.blocks import conv, layer, pool
from dsinga.net import NeuralNet
from dsinga.passes.predictor import row_bytes
from tests.support import field_layers  # noqa: F401  registers its layers
from tests.support.plain_nets import dense, net_of
from tests.support.refusals import refused

UNET = [
    conv("c0", "data", 4, 3, pad=1), pool("p0", "c0", kernel=2), conv("c1", "p0", 4, 3, pad=1),
    LayerConf(name="u0", user_type="Repeat", srclayers=["c1"]),
    layer("j0", "kConcate", "u0", "c0", concate_conf={"concate_dim": 1}), conv("end", "j0", 2, 1),
]  # fmt: skip


def tiles_of(
    layers: list[LayerConf], lengths: tuple[int, ...], outputs: tuple[int, ...] | None = None, window: int = 16
) -> field_tiles.FieldTiles:
    def make_net(size: tuple[int, ...]) -> NeuralNet:
        return net_of(*layers, batch=1, shape=(1, *size))

    params = {name: np.zeros(param.shape, np.float32) for name, param in make_net((window, window)).params.items()}
    return plan_tiles(make_net, params, layers[-1].name, (window, window), lengths, outputs or lengths)


def test_a_small_field_is_one_tile() -> None:
    tiles = tiles_of(UNET, (34, 56))
    assert [len(axis) for axis in tiles.axes] == [1, 1]
    assert tiles.net.layer("end").shape == (1, 2, 34, 56)


def test_a_large_field_is_cut_into_tiles_of_bounded_memory() -> None:
    tiles = tiles_of(UNET, (20_000, 40_006))
    assert row_bytes(tiles.net) <= field_tiles.TILE_BYTES
    assert all(axis.core >= 512 for axis in tiles.axes)
    assert tiles.net.layer("data").shape[2:] == tuple(axis.size for axis in tiles.axes)
    assert [sum(axis.chunks) for axis in tiles.axes] == [20_000, 40_006]
    assert {axis.size % 2 for axis in tiles.axes} == {0}


def test_a_net_of_whole_fields_has_one_tile_or_is_refused() -> None:
    whole = [layer("norm", "kLRN", "data"), *UNET[:-1], conv("c2", "j0", 1, 1), layer("end", "kSoftmax", "c2")]
    assert [len(axis) for axis in tiles_of(whole, (64, 64)).axes] == [1, 1]
    refused(lambda: tiles_of(whole, (12_000, 12_000)), "'end'", "x 12000 points")


def test_a_net_of_one_size_takes_fields_of_its_windows() -> None:
    fixed = [dense("ip", "data", 256), layer("end", "kReshape", "ip", reshape_conf={"shape": [1, 16, 16]})]
    assert tiles_of(fixed, (16, 16)).net.layer("end").shape == (1, 1, 16, 16)
    refused(lambda: tiles_of(fixed, (16, 20), (16, 16)), "ip_wei", "param '")


@pytest.mark.parametrize(
    ("layers", "outputs", "message"),
    [
        (UNET[:2], (40, 40), "'p0' gives a point for each 2 x 2 points of its field"),
        ([conv("c", "data", 1, 3)], (40, 40), "'c' gives 38 x 38 points for fields of 40 x 40, but .* have 40 x 40"),
        ([dense("ip", "data", 2)], (16, 16), "'ip' gives no points for fields of 16 x 16"),
    ],
)
def test_a_layer_that_gives_no_field_of_the_targets_is_refused(
    layers: list[LayerConf], outputs: tuple[int, int], message: str
) -> None:
    refused(lambda: tiles_of(layers, outputs), message)


def test_a_net_that_crops_gives_the_field_without_its_context() -> None:
    tiles = tiles_of([conv("c", "data", 1, 3), conv("d", "c", 1, 5)], (4096, 9000), (4090, 8994))
    assert [sum(axis.chunks) for axis in tiles.axes] == [4090, 8994]
    assert math.prod(axis.size for axis in tiles.axes) < 4096 * 9000
