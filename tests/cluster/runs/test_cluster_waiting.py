"""The wait of the cluster: it announces what it waits for, calls its check, and has an end."""

import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.dask import waiting
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, wait_until
from tests.support.refusals import refused


def test_a_wait_ends_with_the_result_and_calls_its_check_before_each_new_attempt() -> None:
    attempts = iter([StillWaiting("one is missing", RunError("none came"))] * 3 + [7])
    checks: list[int] = []
    result = wait_until(lambda _: next(attempts), 60.0, Announcements(print), lambda: checks.append(1), pause=0.0)
    assert result == 7
    assert len(checks) == 3


def test_a_wait_ends_with_its_failure_and_with_the_error_of_its_check() -> None:
    missing = StillWaiting("one is missing", RunError("none came"))
    refused(lambda: wait_until(lambda _: missing, 0.0, Announcements(print)), "none came", error=RunError)

    def refuse() -> None:
        raise RunError("cancelled")

    refused(lambda: wait_until(lambda _: missing, 60.0, Announcements(print), refuse), "cancelled", error=RunError)


def test_a_new_topic_is_announced_again_and_the_same_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_ANNOUNCEMENT_SECONDS", 0.0)
    sentences: list[str] = []
    announcements = Announcements(sentences.append)
    for change_seconds in (60.0, 0.0):
        monkeypatch.setattr(waiting, "CHANGE_SECONDS", change_seconds)
        for topic in (1, 1, 2, 2):
            announcements.give(f"{topic} of 3 are there", topic)
    assert sentences == [f"{topic} of 3 are there" for topic in (1, 2)]
    assert announcements.count == 2
    assert announcements.seconds_left() > 200
