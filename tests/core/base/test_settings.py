"""dsinga's settings in Dask's configuration: defaults, the schema, and messages about wrong ones."""

import json
import math
from pathlib import Path

import dask.config
import pytest
import yaml

from dsinga import UserError
from dsinga.base import settings
from dsinga.base.settings import read_setting
from tests.support.executed_pages import ROOT
from tests.support.programs import python

jsonschema = pytest.importorskip("jsonschema", reason="needs pip install jsonschema")


def files() -> tuple[dict, dict]:
    """The defaults and the schema, as they are in the package."""
    return tuple(
        yaml.safe_load((ROOT / "dsinga" / "base" / name).read_text()) for name in ("dsinga.yaml", "dsinga-schema.yaml")
    )


def test_the_defaults_obey_the_schema_and_each_setting_has_both():
    defaults, schema = files()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(defaults, schema)
    properties = schema["properties"]["dsinga"]["properties"]
    assert list(defaults["dsinga"]) == list(properties)
    assert all(rule["description"].strip() for rule in properties.values())


def test_values_come_in_the_types_that_the_package_uses():
    with dask.config.set({"dsinga": {}}):
        assert read_setting("timeout") == 300.0
        assert read_setting("queue_timeout") == math.inf
        assert read_setting("overlap") is True
        assert read_setting("cache") is None
    with dask.config.set({"dsinga.timeout": "1.5 minutes", "dsinga.queue-timeout": 7, "dsinga.cache": Path("/x/y")}):
        assert read_setting("timeout") == 90.0
        assert read_setting("queue_timeout") == 7.0
        assert read_setting("cache") == "/x/y"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("timeout", "5 minuts", r"is '5 minuts' \(.*\); give a time above 0, such as '30s'$"),
        ("timeout", "", "give a time above 0"),
        ("timeout", 0, "give a time above 0"),
        ("timeout", -1.0, "give a time above 0"),
        ("timeout", math.nan, "give a time above 0"),
        ("timeout", None, r"is None .*give a time above 0, such as '30s'$"),
        ("timeout", True, "is True .*give a time above 0"),
        ("queue_timeout", "never", "give a time above 0, such as '2 hours', or null$"),
        ("device", "tpu", "is 'tpu' .*; give auto, cpu or gpu$"),
        ("overlap", "off", "is 'off' .*; give true or false$"),
        ("overlap", 1, "give true or false$"),
        ("cache", 5, "give a text, such as '/scratch/me/dsinga', or null$"),
        ("timout", "30s", r"there is no setting dsinga.timout \(.*\); did you mean dsinga.timeout\?$"),
        ("colour", "red", "there is no setting dsinga.colour .*; there are dsinga.timeout, dsinga.queue_timeout, "),
    ],
)
def test_a_wrong_setting_is_refused_whichever_is_read(name, value, message):
    with dask.config.set({f"dsinga.{name}": value}), pytest.raises(UserError, match=message) as error:
        read_setting("device" if name == "timeout" else "timeout")
    assert "set in Python, as by dask.config.set" in str(error.value)


def test_the_whole_in_place_of_a_setting_is_refused():
    with dask.config.set({"dsinga": "30s"}), pytest.raises(UserError, match="'30s' in place of the settings dsinga"):
        read_setting("timeout")


def run(code: str, **environment: str) -> str:
    """Run Python code in a process of its own; return what it prints."""
    return python("-c", code, environment=environment).stdout


READ = """
from dsinga.base.errors import UserError
from dsinga.base.settings import read_setting
try:
    print(read_setting("timeout"))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("environment", "printed"),
    [
        ({"DASK_DSINGA__TIMEOUT": "30s"}, "30.0"),
        ({"DASK_DSINGA__TIMEOUT": "soon"}, "'soon' (from the environment variable DASK_DSINGA__TIMEOUT); give a"),
        (
            {"DASK_DSINGA__TIMOUT": "30s"},
            "there is no setting dsinga.timout (from the environment variable DASK_DSINGA__TIMOUT); did you mean "
            "dsinga.timeout?",
        ),
        ({"DASK_DSINGA_TIMEOUT": "30s"}, "write DASK_DSINGA__TIMEOUT, with two underscores after DSINGA"),
    ],
    ids=lambda value: next(iter(value.items())) if isinstance(value, dict) else "",
)
def test_the_environment_of_a_process_is_named(environment, printed):
    assert printed in run(READ, **environment)


def test_a_file_of_dasks_configuration_is_named(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("dsinga:\n  queue-timeout: tomorrow\n")
    assert f"the setting dsinga.queue_timeout is 'tomorrow' (from {file}); give" in run(READ, DASK_CONFIG=str(tmp_path))


def test_dask_knows_the_defaults_once_settings_are_imported():
    printed = run("import dsinga.base.settings, dask.config, json; print(json.dumps(dask.config.get('dsinga')))")
    assert json.loads(printed) == files()[0]["dsinga"]
    assert settings.defaults() == files()[0]["dsinga"]
