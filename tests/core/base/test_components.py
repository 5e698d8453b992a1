"""Names of packages that are imported when they are first used."""

import importlib

import pytest

from tests.support.programs import python


def test_a_name_is_imported_when_it_is_first_used():
    program = (
        "import sys, dsinga.cutting; assert 'dsinga.cutting.strategy' not in sys.modules; "
        "from dsinga.cutting import choose_cuts; assert 'dsinga.cutting.strategy' in sys.modules; "
        "assert choose_cuts is vars(dsinga.cutting)['choose_cuts'] and 'topology' in dir(dsinga.cutting)"
    )
    python("-c", program)


def test_a_name_that_no_face_has():
    with pytest.raises(AttributeError, match=r"^module 'dsinga.net' has no attribute 'Xyzzy'$"):
        importlib.import_module("dsinga.net").Xyzzy  # noqa: B018
