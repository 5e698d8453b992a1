"""The backends, one after the other."""

import pytest

from tests.support.ops_backends import Backend, backends, load


@pytest.fixture(scope="module", params=backends())
def backend(request: pytest.FixtureRequest) -> Backend:
    """One backend in one dtype."""
    name, dtype = request.param
    return Backend(load(name), dtype)
