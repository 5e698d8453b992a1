"""Names of packages that are imported when they are first used."""

from __future__ import annotations

import importlib

import pytest

from tests.support.programs import python


def test_a_name_is_imported_when_it_is_first_used():
    program = (
        "import sys, dsinga.net; assert 'dsinga.net.strategy' not in sys.modules; "
        "from dsinga.net import choose_cuts; assert 'dsinga.net.strategy' in sys.modules; "
        "assert choose_cuts is vars(dsinga.net)['choose_cuts'] and 'cut_evenly' in dir(dsinga.net)"
    )
    python("-c", program)


def test_a_name_that_no_face_has():
    with pytest.raises(AttributeError, match=r"^module 'dsinga.net' has no attribute 'Xyzzy'$"):
        importlib.import_module("dsinga.net").Xyzzy  # noqa: B018
