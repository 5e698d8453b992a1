"""Errors keep none of the variables of dsinga's functions, and all of others."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from dsinga.base.error_frames import clear_frames, cleared_frames
from dsinga.base.errors import UserError
from dsinga.ops import get_ops


class Held:
    """An object that a variable of a function refers to."""


def fail(references: list[weakref.ref[Held]]) -> None:
    held = Held()
    references.append(weakref.ref(held))
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise UserError("the error") from error


@cleared_frames()
def task(references: list[weakref.ref[Held]]) -> None:
    fail(references)


def test_a_task_that_fails_keeps_nothing() -> None:
    references: list[weakref.ref[Held]] = []
    with pytest.raises(UserError, match="the error") as raised:
        task(references)
    gc.disable()
    try:
        assert references[0]() is None
    finally:
        gc.enable()
    names = [frame.name for frame in raised.traceback]
    assert names[-2:] == ["task", "fail"], "the lines of the traceback stay"


def test_only_frames_of_the_package_are_cleared() -> None:
    class Conf:
        def __array__(self, dtype=None, copy=None):
            held = Held()
            references.append(weakref.ref(held))
            raise UserError("in the user's code, called by dsinga")

    references: list[weakref.ref[Held]] = []
    with pytest.raises(UserError) as raised:
        get_ops("numpy").asarray(Conf())
    clear_frames(raised.value, "dsinga")
    variables = {frame.name: frame.locals for frame in raised.traceback}
    assert variables["asarray"] == {}
    assert variables["__array__"]["held"] is references[0](), "a debugger shows the user's variables"


def test_a_running_function_keeps_its_variables() -> None:
    array = np.ones(3)
    try:
        raise UserError("here")
    except UserError as error:
        clear_frames(error)
    assert array.sum() == 3
