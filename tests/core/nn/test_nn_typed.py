"""The fields of a job that type checkers know of fit and job; typed_program.py has what they say of a program."""

from __future__ import annotations

import inspect

import pytest

from dsinga.base.registry import registered
from dsinga.job import Job
from dsinga.job.message import field_types
from dsinga.nn.model.given_data import FitFields, JobFields
from dsinga.nn.model.trainable import Trainable


@pytest.mark.parametrize(("function", "fields"), [(Trainable.fit, FitFields), (Trainable.job, JobFields)])
def test_fit_and_job_take_every_field_of_a_job(function, fields):
    named = set(inspect.signature(function).parameters) - {"fields"}
    known = {name for each in (JobFields, fields) for name in each.__annotations__}
    of_addons = {name.removeprefix("Job.") for name in registered("message") if name.startswith("Job.")}
    assert known == {*field_types(Job), *of_addons} - named - {"resume"}  # which dsinga.train takes
