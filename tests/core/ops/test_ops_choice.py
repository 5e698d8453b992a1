"""The choice of a backend by name, by environment variable, or by default."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from dsinga.base.errors import UserError
from dsinga.ops import BACKENDS, Ops, families, get_ops
from tests.support.programs import python


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("DSINGA_OPS", raising=False)


@pytest.fixture
def unloadable(monkeypatch):
    """A backend "best" that is the first choice and cannot load."""

    def refuse() -> Ops:
        raise UserError("the kernel backend 'best' needs luck")

    loadable = dict(BACKENDS)
    BACKENDS.clear()
    BACKENDS.update(best=refuse, **loadable)
    yield
    del BACKENDS["best"]


def test_one_instance_for_all_threads():
    with ThreadPoolExecutor(4) as pool:
        instances = set(pool.map(lambda _: get_ops("numpy"), range(16)))
    assert instances == {get_ops("numpy")}
    assert get_ops("numpy").name == "numpy"


def test_the_environment_overrides_the_name(monkeypatch):
    monkeypatch.setenv("DSINGA_OPS", "numpy")
    assert get_ops().name == "numpy"
    assert get_ops("onednn").name == "numpy"


def test_an_unknown_name_is_answered_with_the_nearest(monkeypatch):
    with pytest.raises(UserError, match=r"no kernel backend 'onednm'; did you mean 'onednn'\?.*numpy"):
        get_ops("onednm")
    monkeypatch.setenv("DSINGA_OPS", "nunpy")
    with pytest.raises(UserError, match=r"\$DSINGA_OPS.*did you mean 'numpy'"):
        get_ops()


def test_a_backend_that_cannot_load_is_skipped_unless_requested(unloadable):
    assert get_ops().name in BACKENDS
    with pytest.raises(UserError, match="needs luck"):
        get_ops("best")


def test_backends_are_pickled():
    assert pickle.loads(pickle.dumps(get_ops())).name == get_ops().name


def test_families_have_all_of_their_kernels_and_each_backend_its_own():
    """A backend that inherits a family from another must not keep its slower kernels."""
    for family, kernels in families.KERNELS.items():
        families.load(family)
        names = [name.split(":") for name in Ops.families[family]]
        classes = [getattr(import_module(module), name) for module, name in names]
        public = {kernel for each in classes for kernel in vars(each) if not kernel.startswith("_")}
        assert public == {*kernels}
    for backend in families._backends:
        for names in backend.families.values():
            assert {name.split(":")[1] for name in names} <= {each.__name__ for each in backend.__bases__}


def test_a_thread_that_calls_a_kernel_while_its_family_is_added_finds_that_of_its_backend():
    script = """
import sys, types
from dsinga.ops import families

class Kernels(types.ModuleType):
    def __getattr__(self, name):  # when a class is asked for, to be added to a backend
        if name == "Reference":
            seen.append(type(fast).crf.__qualname__)
        return type(name, (), {"crf": lambda self: name})

seen = []
sys.modules["kernels"] = Kernels("kernels")
Slow = type("Slow", (families.LazyFamilies,), {"families": {"crf": ("kernels:Reference",)}})
Fast = type("Fast", (Slow,), {"families": {"crf": ("kernels:Fast",)}})
fast = Fast()
families.load("crf")
print(fast.crf(), Slow().crf(), len(seen))
"""
    done = python("-c", script)
    assert done.stdout.split() == ["Fast", "Reference", "1"]


def test_a_family_is_imported_when_one_of_its_kernels_is_called():
    script = """
import sys
import numpy as np
from dsinga.ops import get_ops
x = np.ones((1, 600, 4), np.float32)
names = "dsinga.ops.numpy.attention", "dsinga.ops.onednn.recurrent"
ops = get_ops()
assert not any(name in sys.modules for name in names)
get_ops("numpy").attention(x, x, x, 1, 1.0, None, False)
print(ops.name, type(ops).attention.__qualname__)
"""
    done = python("-c", script)
    name, kernel = done.stdout.split()
    assert kernel == ("OnednnAttention.attention" if name == "onednn" else "NumpyAttention.attention")
