"""Settings that a component's class declares: what a definition refuses, and what a job says of wrong values."""

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.base.registry import import_file, register
from dsinga.job import Fault, JobError, LRNConf, Phase, Settings, check, loads, required, setting, to_text
from dsinga.job.component import docs
from dsinga.job.limits import Count, NonNegative, Range, Share
from dsinga.layers import Layer
from dsinga.training import Initialiser
from tests.support.refusals import refused, refused_with
from tests.support.registries import restored_registry


class Shape(Enum):
    """A shape."""

    kRound = 0
    kSquare = 1


class Window(Layer):
    """A user's layer with settings of every type."""

    class Conf(Settings):
        known: ClassVar[int] = 3
        width: Count = required("how many steps a window has")
        share: Share = setting(0.5, "the share that is kept")
        shape: Shape = setting(Shape.kRound, "the shape of the window")
        places: list[Count] = setting([1, 2], "where windows begin")
        name_of: str | None = setting(None, "a name")
        height: Annotated[int, Range(1, 8)] = setting(2, "how many rows a window has")

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def window():
    with restored_registry():
        register("layer", "Window")(Window)
        yield


def job(settings: str) -> Any:
    return loads(f'train_steps: 1 neuralnet {{ layer {{ name: "a" user_type: "Window"\n{settings} }} }}', "job.conf")


def settings_of(text: str) -> Window.Conf:
    conf = job(text).neuralnet.layer[0]
    return conf.settings_of(Window.Conf)


def test_settings_have_the_values_of_the_job_and_the_defaults_of_the_class():
    settings = settings_of("window_conf { width: 3 shape: kSquare }")
    assert (settings.width, settings.share, settings.shape, settings.places) == (3, 0.5, Shape.kSquare, [1, 2])
    settings.places.append(3)
    assert settings_of("window_conf { width: 3 }").places == [1, 2]
    text = to_text(job("window_conf { width: 3 places: 4 }"))
    assert "window_conf { width: 3 places: 4 }" in text
    assert loads(text) == job("window_conf { width: 3 places: 4 }")
    assert settings_of("[window_conf] { width: 3 }") == settings_of("window_conf { width: 3 }"), "as SINGA writes it"
    assert docs(Window.Conf)["width"] == "how many steps a window has"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("window_conf { widht: 3 }", "job.conf:2: layer 'a': WindowConf has no field 'widht'; did you mean 'width'?"),
        ("window_conf { share: 0.1 }", "job.conf:2: layer 'a': WindowConf needs the field 'width'"),
        ('window_conf { width: "x" }', "job.conf:2: layer 'a': WindowConf.width takes a whole number, not 'x'"),
        ("window_conf { width: 0 }", "job.conf:2: layer 'a': width must be at least 1, not 0"),
        ("window_conf { width: 3\nplaces: [1, 0] }", "job.conf:3: layer 'a': places must be at least 1, not 0"),
        ("window_conf { width: 3 shape: kRoun }", "there is no Shape 'kRoun'; did you mean 'kRound'?"),
        ("", "job.conf:1: layer 'a': user_type 'Window' needs window_conf { ... }"),
        ("[windw_conf] { width: 3 }", "'Window' has no extension [windw_conf]; did you mean [window_conf]?"),
        ("[window_conf] { widht: 3 }", "job.conf:2: layer 'a': WindowConf has no field 'widht'; did you mean 'width'?"),
        ("[window_conf] { width: 3 }\nwindow_conf { width: 3 }", "LayerConf.window_conf is given twice"),
        ("windw_conf { }", "job.conf:2: layer 'a': LayerConf has no field 'windw_conf'; did you mean 'window_conf'?"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_line(settings: str, message: str) -> None:
    refused_with(lambda: check(job(settings), [Phase.kTrain], needs_paths=False), message, error=JobError)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        ("share: float", "Conf: the setting 'share' has no default; write share: TYPE = setting"),
        ("share: float = 0.5", "Conf: the setting 'share' does not say what it means; write share: TYPE = setting"),
        ("share = setting(0.5, 'x')", "Conf: the setting 'share' has no type; write share: TYPE"),
        ("share: Share = setting(1.0, 'x')", r"Conf: the default of 'share' must be in \[0, 1\), not 1.0"),
        ("sizes: list[Count] = setting([3, 0], 'x')", "Conf: the default of 'sizes' must be at least 1, not 0"),
        ("share: complex = setting(1j, 'x')", "Conf: the setting 'share' has the type complex; settings are"),
        ("share: float = setting(0.5)", "Conf: the setting 'share' does not say what it means; write share: TYPE ="),
        ("share: float = required()", "Conf: the setting 'share' does not say what it means; write share: TYPE = set"),
        ("width: Count = setting(1.5, 'x')", "Conf: the default of 'width' takes a whole number, not 1.5"),
        ("share: float = setting(None, 'x')", "Conf: the default of 'share' takes a number, not None"),
        ("shape: Shape = setting('kRoun', 'x')", "Conf: the default of 'shape': there is no Shape 'kRoun'; did you"),
        ("table: dict = setting({}, 'x')", "Conf: the setting 'table' has the type dict; settings are"),
        ("x: Annotated[float, (0, 1)] = setting(0.5, 'x')", r"the type of 'x' is annotated with \(0, 1\); only int"),
        ("x: Annotated[str, Range(0, 1)] = required('x')", "the type of 'x' is annotated with Range.*; only int and"),
        ("x: Annotated[float, Range(10, 0.1)] = required('x')", r"Range\(10, 0.1\) of 'x' is empty; give the lower"),
        ("share: Sahre = setting(1.0, 'x')", "Conf: the setting 'share' has the type 'Sahre', but name 'Sahre' is not"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_is_made(declare: str, message: str) -> None:
    source = f"from __future__ import annotations\nclass Conf(Settings):\n    {declare}\n"
    refused(lambda: exec(source, globals() | {"__name__": __name__}), message)


USERS_FILE = """
from __future__ import annotations
import dsinga
{imports}
from dsinga.extensions import Extension
from dsinga.job import Settings, setting
from dsinga.job.component import Configured
from dsinga.job.limits import Share
from dsinga.layers import Layer
from dsinga.training import Initialiser, Schedule, Updater

@dsinga.register("{kind}", "Mine")
class Mine({base}):
    class Conf(Settings):
        {setting}
"""
BASES = {
    "layer": "Layer",
    "updater": "Updater",
    "schedule": "Schedule",
    "initialiser": "Initialiser",
    "algorithm": "Configured",
    "extension": "Extension",
}
GOOD = "share: Share = setting(0.5, 'a share')"


@pytest.mark.parametrize("kind", BASES)
def test_each_kind_of_component_is_refused_where_it_is_defined(tmp_path: Path, kind: str) -> None:
    check_definitions(tmp_path, kind, BASES[kind])


def check_definitions(tmp_path: Path, kind: str, base: str, imports: str = "") -> None:
    """Check what is said of components of a kind with a wrong setting, and of two of a name."""

    def write(name: str, declare: str) -> Path:
        (tmp_path / name).write_text(USERS_FILE.format(kind=kind, base=base, imports=imports, setting=declare))
        return tmp_path / name

    for declare, text in (
        ("share: Sahre = setting(0.5, 'a share')", "the setting 'share' has the type 'Sahre', but name 'Sahre' is not"),
        ("share: Share", "the setting 'share' has no default; write share: TYPE = setting"),
        ("share: Share = setting(1.0, 'a share')", r"the default of 'share' must be in \[0, 1\), not 1.0"),
    ):
        with pytest.raises(UserError, match=f"wrong.py:14: MineConf: {text}"):
            import_file(write("wrong.py", declare))
    import_file(write("one.py", GOOD))
    with pytest.raises(UserError, match=rf"two {kind}s are called 'Mine', in {tmp_path}/one.py and in \S+two.py; give"):
        import_file(write("two.py", GOOD))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("both are given", "job.conf:2: layer 'a': both are given"),
        (Fault("low is above high", "low"), "job.conf:3: layer 'a': low is above high"),
        (3, "job.conf:2: faults of BoundsConf must yield sentences or Fault(...), not 3"),
    ],
)
def test_what_contradicts_each_other_is_told_with_its_line(fault: Any, message: str) -> None:
    class Bounds(Layer):
        """A user's layer whose settings contradict each other."""

        class Conf(Settings):
            low: NonNegative = setting(1.0, "the least value")

            def faults(self):
                yield fault

    register("layer", "Bounds")(Bounds)
    text = job("bounds_conf {\nlow: 2 }")
    text.neuralnet.layer[0].user_type = "Bounds"
    refused_with(lambda: check(text, [Phase.kTrain], needs_paths=False), message)


def test_a_conf_that_declares_no_settings_is_refused():
    class Plain(Layer):
        """A layer whose Conf is a plain class."""

        class Conf:
            width = 3

    refused(lambda: register("layer", "Plain")(Plain), r"layer 'Plain': write class Conf\(dsinga.job.Settings\)")


def test_settings_of_a_class_that_is_not_registered_are_told_so():
    with pytest.raises(JobError, match=r"job.conf:2: .*no layer is registered as 'Windw'.* decorate it with"):
        loads('neuralnet { layer { name: "a" user_type: "Windw"\nwindw_conf { width: 3 } } }', "job.conf")


def test_two_components_with_one_field_are_refused_with_the_remedy():
    class LRN(Layer):
        """Another layer with lrn_conf."""

        class Conf(Settings):
            size: NonNegative = setting(1.0, "a size")

    register("layer", "MyLRN")(LRN)
    refused(lambda: job("window_conf { width: 3 }"), r"'lrn_conf'.*class Conf\(Settings, field=\"my_conf\"\)")
    assert LRNConf.__name__ == "LRNConf"


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("[fooparam_conf] { # as on SINGA's page\n x: 10 }", 10),
        ("x: 10", 10),
        ("[fooparam_conf] { }", 1),
        ("x: 2 [fooparam_conf] {\n x: 10 }", "ParamGenConf.x is given twice, first at job.conf:3"),
        ("[fooparam_conf] {\n y: 10 }", "job.conf:4: layer 'a': FooParamConf has no field 'y'; it has x"),
        ("[fooparam_conf] {\n x: 'ten' }", "job.conf:4: layer 'a': FooParamConf.x takes a whole number, not 'ten'"),
        ("[foo_conf] { x: 10 }", "initialiser 'FooParam' has no extension [foo_conf]; did you mean [fooparam_conf]?"),
    ],
)
def test_an_extension_of_singa_is_read_into_flat_settings(init: str, expected: int | str) -> None:
    class FooParam(Initialiser):
        class Conf(Settings):
            x: int = setting(1, "a number")

    with restored_registry():
        register("initialiser", "FooParam")(FooParam)
        register("initialiser", "Zeros")(lambda shape, conf, rng: np.zeros(shape))
        text = f'window_conf {{ width: 3 }} param {{ name: "w" init {{ user_type: "FooParam"\n{init} }} }}'
        if isinstance(expected, str):
            refused(lambda: job(text), re.escape(expected), error=JobError)
        else:
            conf = job(text).neuralnet.layer[0].param[0].init
            assert conf.settings_of(FooParam.Conf).x == expected
        with pytest.raises(JobError, match=re.escape("initialiser 'Zeros' has no extension [x]; declare its settings")):
            job('param { name: "w" init { [x] { y: 1 } user_type: "Zeros" } }')
