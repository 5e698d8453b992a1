"""The choice of a backend by name, by environment variable, or by default."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsinga.base.errors import UserError
from dsinga.ops import BACKENDS, Ops, get_ops
from tests.support.refusals import refused


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
    refused(lambda: get_ops("onednm"), r"no kernel backend 'onednm'; did you mean 'onednn'\?.*numpy")
    monkeypatch.setenv("DSINGA_OPS", "nunpy")
    refused(get_ops, r"\$DSINGA_OPS.*did you mean 'numpy'")


def test_a_backend_that_cannot_load_is_skipped_unless_requested(unloadable):
    assert get_ops().name in BACKENDS
    refused(lambda: get_ops("best"), "needs luck")


def test_backends_are_pickled():
    assert pickle.loads(pickle.dumps(get_ops())).name == get_ops().name
