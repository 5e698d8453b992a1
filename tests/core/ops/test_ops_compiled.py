"""Loops compiled by numba have the bits of the kernels and of the updaters' formulas that they replace."""

import logging
from importlib.util import find_spec

import numpy as np
import pytest

from dsinga.base import buffers
from dsinga.cluster.server.served_slice import split_update
from dsinga.job import LRGenConf, UpdaterConf, UpdaterType
from dsinga.ops import get_ops
from dsinga.ops.compiled import compiler
from dsinga.ops.layout import is_channels_last
from dsinga.training import create_updater
from tests.support.refusals import refused

NUMBA = pytest.mark.skipif(find_spec("numba") is None, reason="pip install numba")
BF16 = pytest.mark.skipif(bool(get_ops("onednn").lacks_bf16()), reason="the processor has no bfloat16")
ELEMENTWISE = [kind for kind in UpdaterType if kind.name not in ("kUserUpdater", "kLamb", "kMuon")]
SIZE = compiler.SMALLEST + 3


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(compiler.VARIABLE, raising=False)
    compiler._load.cache_clear()
    yield
    compiler._load.cache_clear()


def normal(seed, *shape, dtype=np.float32):
    x = buffers.empty(shape, channels_last=True, dtype=dtype)
    x[...] = np.random.default_rng(seed).standard_normal(shape, np.float32)
    assert is_channels_last(x)
    return x


def computed(run, monkeypatch):
    """What a function returns with compiled loops, and without."""
    assert compiler.compiled("formulas", SIZE) is not None
    results = [run()]
    monkeypatch.setenv(compiler.VARIABLE, "0")
    compiler._load.cache_clear()
    assert compiler.compiled("formulas", SIZE) is None
    return [*results, run()]


@NUMBA
@pytest.mark.parametrize("shape", [(64, 16, 32, 32), (5, 24, 13, 43), (9, 300, 8, 8), (2, 7, 5, 31, 41)])
@pytest.mark.parametrize("lost", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("precision", ["float32", pytest.param("bf16", marks=BF16)])
def test_batch_normalisation_has_the_same_bits(shape, lost, precision, monkeypatch):
    ops = get_ops("onednn").for_worker(precision=precision)
    x, feature, dy = (normal(seed, *shape, dtype=ops.factor_dtype) for seed in range(3))
    dy[0, :, 0, 0] = dy[0, :, 1, 1] = lost

    def run():
        moments = ops.channel_moments(x)
        masked, sums = ops.rectified_batch_norm_sums(x, feature, dy, *moments, 1e-5)
        return *moments, masked, *(sums or ops.batch_norm_sums(x, masked, *moments, 1e-5))

    with np.errstate(invalid="ignore"):
        for compiled, plain in zip(*computed(run, monkeypatch), strict=True):
            assert compiled.dtype == plain.dtype  # numpy knows no NaN of bfloat16
            np.testing.assert_array_equal(compiled.astype(np.float64), plain.astype(np.float64))


@NUMBA
@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.parametrize("gradients", [1, 2])
def test_updates_have_the_same_bits(kind, gradients, monkeypatch):
    """Of one gradient, and of the sum of two as servers get them; some gradients are 0, infinite or no number."""
    rate = LRGenConf(type="kInverse", base_lr=0.1, inverse_conf={"gamma": 0.5, "pow": 1})
    momentum = 0.9 if kind in (UpdaterType.kSGD, UpdaterType.kNesterov) else 0.0
    clip = {"clip_low": -0.1, "clip_high": 0.1, "nan_to_zero": True, "l1": 0.1} if kind is UpdaterType.kSGD else {}
    more = {"rmsprop_conf": {"rho": 0.9}} if kind is UpdaterType.kRMSProp else {}
    conf = UpdaterConf(type=kind, learning_rate=rate, momentum=momentum, weight_decay=0.01, **clip, **more)

    def run():
        updater, rng = create_updater(conf), np.random.default_rng(0)
        value = rng.standard_normal(SIZE).astype(np.float32)
        state = updater.initial_state(value)
        for step in range(3):
            parts = [rng.standard_normal(SIZE).astype(np.float32) for _ in range(gradients)]
            parts[0][:3] = 0.0, np.inf, np.nan
            if gradients == 1:
                updater.update(step, value, parts[0], state)
            else:
                for block in split_update(updater.create_update(step, value, parts[0], state), parts, 0.5):
                    block.do()
        return value, *state.values()

    with np.errstate(all="ignore"):
        for compiled, plain in zip(*computed(run, monkeypatch), strict=True):
            np.testing.assert_array_equal(compiled, plain)


@NUMBA
def test_small_arrays_do_not_wait_for_numba():
    assert compiler.compiled("formulas", compiler.SMALLEST - 1) is None


def test_an_unknown_value_of_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv(compiler.VARIABLE, "off")
    refused(lambda: compiler.compiled("formulas", SIZE), "'off'", "leave it unset")


@NUMBA
def test_a_numba_that_cannot_compile_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(compiler, "import_module", lambda name: 1 / 0)
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert compiler.compiled("formulas", SIZE) is compiler.compiled("formulas", SIZE) is None
    assert [record.getMessage() for record in caplog.records] == [
        "computing without compiled loops, since numba cannot compile them: division by zero"
    ]
