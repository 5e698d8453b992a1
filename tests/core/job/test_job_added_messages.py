"""Messages that add-ons bring to jobs: registered by the class and the field that holds them, found by name."""

import pickle
from collections.abc import Iterator

import pytest

from dsinga import register
from dsinga.job import Job, JobError, Settings, check, loads, required, setting, to_text
from dsinga.job.limits import Natural
from dsinga.job.message import added_fields, field_names
from tests.support.registries import restored_registry

TEXT = """train_steps: 1
weather {
  place: "Zugspitze"
}
neuralnet { layer { name: "data" type: kRecordInput store_conf { path: "a" batchsize: 8 } } }
"""


class WeatherConf(Settings):
    """Where the weather is looked up while a job trains."""

    place: str = required("the place")
    hours: Natural = setting(3, "the hours between two looks")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with restored_registry():
        register("message", "Job.weather")(WeatherConf)
        yield


def test_a_message_is_a_field_of_the_class_that_its_name_says():
    job = loads(TEXT)
    assert (job.weather.place, job.weather.hours) == ("Zugspitze", 3)
    assert "weather" in added_fields(Job)
    assert "weather" in field_names(Job)
    assert loads(to_text(job)) == job == pickle.loads(pickle.dumps(job))
    assert 'weather { place: "Zugspitze" }' in to_text(job)


def test_a_message_is_made_in_python_and_is_none_where_it_is_not_given():
    assert Job().weather is None
    job = Job(weather={"place": "Zugspitze"})
    assert job.weather == WeatherConf(place="Zugspitze")
    assert job.replace(weather=None) == Job()
    job.weather = {"place": "Brocken"}
    assert "weather=WeatherConf(place='Brocken')" in repr(job)


def test_settings_of_a_message_are_overridden_by_their_path():
    assert loads(TEXT, overrides=["weather.hours=7"]).weather.hours == 7
    assert loads("", overrides=["weather.place=Brocken"]).weather.place == "Brocken"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('place: "Zugspitze"', "", "job.conf:2: WeatherConf needs the field 'place'"),
        ('place: "Zugspitze"', 'place: "a" hours: -1', "job.conf:3: hours must be at least 0, not -1"),
        ("train_steps: 1", 'place: "a"', "job.conf:1: Job has no field 'place'; it belongs in weather"),
        ('weather {\n  place: "Zugspitze"\n}', "weather: 3", "job.conf:2: Job.weather takes a block weather { ... }"),
    ],
)
def test_what_is_wrong_in_a_message_is_told_with_its_line(before, after, expected):
    with pytest.raises(JobError) as caught:
        check(loads(TEXT.replace(before, after), "job.conf"))
    assert str(caught.value).startswith(expected)
