"""The extensions of a run: SINGA's fields, messages of a job, and what a caller gives."""

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.registry import register
from dsinga.extensions import (
    AtEnd,
    EarlyStopping,
    EverySteps,
    Extension,
    KeepBest,
    LoopPosition,
    ReduceOnPlateau,
    StopBeyond,
    StopOnTime,
    create_extensions,
)
from dsinga.extensions.plateaus import parse_seconds
from dsinga.job import Job, JobError, Settings, check, loads, required, setting
from dsinga.job.limits import Count, NonNegative
from dsinga.testing import SimulatedLoop
from tests.support.refusals import check_refusal, refusal, refused


def names(job: Job, given=()) -> list[str]:
    return [extension.name for extension in create_extensions(job, given)]


def due(step: int, freq: int, after: int) -> bool:
    """SINGA's rule."""
    return freq > 0 and step >= after and (step - after) % freq == 0


FREQ, AFTER = st.integers(0, 10), st.integers(0, 30)


@given(
    st.integers(1, 40), st.tuples(FREQ, AFTER), st.tuples(FREQ, AFTER), st.tuples(FREQ, AFTER), st.tuples(FREQ, AFTER)
)
def test_fields_of_singa_make_triggers_by_its_rule(train_steps: int, display, validate, test, checkpoint) -> None:
    job = Job(train_steps=train_steps, validate_steps=1, test_steps=2)
    fields = {"disp": display, "validate": validate, "test": test, "checkpoint": checkpoint}
    for prefix, (freq, after) in fields.items():
        job = job.replace(**{f"{prefix}_freq": freq, f"{prefix}_after": after})
    extensions = {(extension.name, extension.phase): extension for extension in create_extensions(job)}
    expected = {
        ("Display", "train"): {
            s for s in range(1, train_steps + 1) if due(s, display[0] or max(1, train_steps // 100), display[1])
        },
        ("Evaluation", "val"): {s for s in range(train_steps + 1) if due(s, *validate)},
        ("Evaluation", "test"): {s for s in range(train_steps + 1) if due(s, *test)},
        ("Checkpointing", None): {s for s in range(1, train_steps + 1) if due(s, *checkpoint)},
    }
    if not validate[0]:
        del expected["Evaluation", "val"]
    if not test[0]:
        del expected["Evaluation", "test"]
    assert list(extensions) == list(expected), "in SINGA's order"
    for key, steps in expected.items():
        trigger = extensions[key].trigger
        first = 1 if key[0] == "Display" else 0  # it only looks at steps that are done
        found = {s for s in range(first, train_steps + 1) if trigger.due(LoopPosition(s, at_end=s == train_steps))}
        assert found == steps | {train_steps}, key
        assert not trigger.never_due(train_steps)


def outcome(extension: Extension) -> tuple[Any, ...]:
    """Return what an extension does to a run whose loss falls to 0.9 and whose score falls from 100."""
    metrics = {"loss": lambda step: max(0.9, 2 - step / 10), "score": lambda step: float(100 - step)}
    loop = SimulatedLoop([extension], lambda phase, step: {name: value(step) for name, value in metrics.items()})
    loop.run()
    return loop.step, loop.view.stopped, loop.result.tolist(), loop.checkpoints[loop.step]["rate_factors"]


@pytest.mark.parametrize(
    ("text", "same", "default"),
    [
        (
            'kEarlyStopping monitor: "val/loss" patience: 7 min_delta: 0.5',
            EarlyStopping("val/loss", patience=7, min_delta=0.5),
            EarlyStopping("val/loss"),
        ),
        ('kKeepBest monitor: "val/score" mode: max', KeepBest("val/score", mode="max"), KeepBest("val/loss")),
        (
            'kReduceOnPlateau monitor: "val/loss" factor: 0.5 patience: 2 cooldown: 1 min_factor: 0.1',
            ReduceOnPlateau("val/loss", factor=0.5, patience=2, cooldown=1, min_factor=0.1),
            ReduceOnPlateau("val/loss"),
        ),
        ("kStopBeyond below: 1.35", StopBeyond(below=1.35), StopBeyond(below=-100)),
        ('kStopOnTime time: "1m 10s"', StopOnTime(70), StopOnTime("1h")),
        ("kStopOnTime seconds: 7", StopOnTime(7), StopOnTime("1h")),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_job_names_extensions(text: str, same: Extension, default: Extension) -> None:
    extension = create_extensions(loads(f"train_steps: 200 extension {{ type: {text} }}"))[-1]
    assert extension.name == text.split()[0]
    result = outcome(extension)
    assert result == outcome(same)
    assert result != outcome(default)


@register("extension", "Counting")
class Counting(Extension):
    class Conf(Settings):
        word: str = setting("", "any word")

    trigger = AtEnd()

    def run(self, loop) -> None:
        pass


def test_a_users_own_extension_is_made_from_its_message() -> None:
    (counting,) = create_extensions(
        loads('extension { user_type: "Counting" freq: 3 after: 4 [counting_conf] { word: "x" } }')
    )[2:]
    assert isinstance(counting, Counting)
    assert counting.settings.word == "x"
    assert isinstance(counting.trigger, EverySteps)
    assert (counting.trigger.freq, counting.trigger.after) == (3, 4)


def test_objects_and_functions_come_after_those_of_the_job() -> None:
    def look(step, metrics):
        pass

    job = loads('extension { type: kKeepBest monitor: "val/loss" }')
    expected = ["Display", "Checkpointing", "kKeepBest", "Counting", "look"]
    assert names(job, [Counting(), look]) == expected


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_extension_or_none_needs_no_list(count: int) -> None:
    def look(step, metrics):
        pass

    for extension in (look, Counting()):
        assert len(names(Job(train_steps=10), extension if count else None)) == 2 + count


class WithoutTrigger(Extension):
    def run(self, loop) -> None:
        pass


@register("extension", "NotOne")
def not_one(conf):
    return 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('user_type: "Countng"', "job.conf:1: no extension is registered as 'Countng'; did you mean 'Counting'"),
        ('user_type: "NotOne"', "job.conf:1: extension 'NotOne' must be a subclass of dsinga.extensions.Extension"),
        ('type: kStopOnTime time: "soon"', "job.conf:1: extension kStopOnTime: 'soon' is no time to stop after; give"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(text: str, message: str) -> None:
    with pytest.raises(JobError) as caught:
        create_extensions(loads(f"extension {{ {text} }}", "job.conf"))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [(90, 90), ("90", 90), ("2h", 7200), ("90 min", 5400), ("1h30m", 5400), ("1.5 hours", 5400), ("2 days 1s", 172801)],
)
def test_times_are_read(time, seconds: float) -> None:
    assert parse_seconds(time) == seconds


@pytest.mark.parametrize("time", ["", "h", "2 weeks", "-1", "1h x", "500 ms", "2hs", 0, float("nan")])
def test_what_is_no_time_is_refused(time) -> None:
    refused(lambda: StopOnTime(time), "is no time to stop after")


@register("extension", "StopBelow")
class StopBelow(Extension):
    """Ends training once the loss is low."""

    class Conf(Settings):
        threshold: NonNegative = required("the loss below which training ends")
        every: Count = setting(2, "every how many steps it looks")

    def set_up(self) -> None:
        self.trigger = EverySteps(self.settings.every)

    def run(self, loop) -> None:
        if loop.metrics.get("val/loss", 2) < self.settings.threshold:
            loop.stop("the loss is low")


def below(settings: str) -> Job:
    return loads(f'train_steps: 200\nextension {{ user_type: "StopBelow"\n{settings} }}', "job.conf")


def test_a_users_extension_has_typed_settings() -> None:
    for settings, same in (("threshold: 1.4", StopBelow(1.4)), ("threshold: 1.4 every: 5", StopBelow(1.4, every=5))):
        extension = create_extensions(below(settings))[-1]
        assert outcome(extension) == outcome(same)
        assert outcome(extension)[1]
    (at_seven,) = create_extensions(below("threshold: 1.4 freq: 7 after: 3"))[2:]
    assert (at_seven.trigger.freq, at_seven.trigger.after) == (7, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StopBelow(), "missing a required argument: 'threshold'"),
        (lambda: StopBelow(1, evry=3), "StopBelow has no argument 'evry'; did you mean 'every'?"),
        (lambda: StopBelow("a"), "threshold is 'a'; give a number of at least 0"),
        (lambda: StopBelow(1, every=0), "every is 0; give a whole number of at least 1"),
        (lambda: StopBelow(float("inf")), "threshold must be a number that float32 can hold, at least 0, not inf"),
    ],
)
def test_wrong_settings_in_python_are_refused(make, message: str) -> None:
    refused(make, message)


def test_constructors_show_the_settings() -> None:
    shown = "(monitor: str, factor: float = 0.1, patience: int = 3, min_delta: float = 0.0, mode: str = 'auto', "
    shown += "cooldown: int = 0, min_factor: float = 0.0, min_lr: float = 0.0)"
    assert str(inspect.signature(ReduceOnPlateau)) == shown
    assert "\n    cooldown: how many values are not counted" in inspect.getdoc(ReduceOnPlateau)
    assert str(inspect.signature(StopBelow)) == "(threshold: float, every: int = 2)"

    class Seldom(StopBelow):
        def __init__(self, steps: int):
            super().__init__(1.0, steps)

    assert [*inspect.signature(Seldom).parameters] == ["steps"]
    assert Seldom(9).trigger.freq == 9


MISTAKES = [
    refusal(lambda: create_extensions(Job(train_steps=10), [Counting]), "not the class Counting", "call it"),
    refusal(lambda: create_extensions(Job(train_steps=10), ["EarlyStopping"]), "'EarlyStopping'", "step, metrics"),
    refusal(lambda: create_extensions(Job(train_steps=10), WithoutTrigger()), "WithoutTrigger", "trigger = EverySteps"),
    refusal(lambda: check(below("threshold: -1")), "job.conf", "0, not -1.0", error=JobError),
    refusal(lambda: check(below("every: 3")), "'StopBelow'", "needs threshold", error=JobError),
    refusal(lambda: check(below("threshold: 1\nafter: 3")), "job.conf", "give freq: every", error=JobError),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
