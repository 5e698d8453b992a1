"""The registry, and users' files that register classes."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from distributed.protocol.pickle import dumps

from dsinga.base.advice import command_line
from dsinga.base.errors import UserError
from dsinga.base.registry import LISTED, import_file, listed, lookup, nearest, nearest_or_listed, registered, unregister
from dsinga.job import LayerConf
from tests.support.refusals import refused
from tests.support.registries import restored_registry

USER_FILE = """
from __future__ import annotations
from dataclasses import dataclass

import dsinga
from dsinga.layers import Layer, Output


@dataclass
class Settings:
    factor: float = 2.0


@dsinga.register("layer", "Twice")
class Twice(Layer):
    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0] * Settings().factor)
"""

ROOT = Path(__file__).parents[3]


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(USER_FILE)
    yield path
    unregister("layer", "Twice")


def test_a_file_registers_its_classes(user_file):
    module = import_file(user_file)
    assert lookup("layer", "Twice") is module.Twice
    assert "Twice" in registered("layer")
    assert module.__name__ not in sys.modules


def test_a_class_of_a_file_can_be_pickled_to_a_process_without_the_file(user_file):
    import_file(user_file)
    layer = lookup("layer", "Twice")(LayerConf(name="twice"), [(4, 3)])
    packed = dumps({"layer": layer})
    user_file.unlink()
    code = """if True:
        import pickle, sys
        (layer,) = pickle.loads(sys.stdin.buffer.read()).values()
        print(layer.compute_feature([], [21.0], None).feature)"""
    process = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, timeout=60)
    assert process.stdout.decode() == "42.0\n", process.stderr.decode()


def test_two_files_with_one_name_are_refused_and_named(user_file, tmp_path):
    import_file(user_file)
    import_file(user_file)  # again, as a notebook does
    other = tmp_path / "other.py"
    other.write_text(USER_FILE)
    refused(lambda: import_file(other), r"two layers are called 'Twice', in \S+own.py and in \S+other.py; give one")
    other.write_text(USER_FILE.replace("Twice", "kReLU"))  # in place of a built-in one, as in SINGA's example rnnlm
    with restored_registry():
        import_file(other)
        assert lookup("layer", "kReLU").__name__ == "kReLU"


def python(code: str, *paths: Path) -> list[str]:
    """Run a program in a process of its own, with further folders of modules; return the lines that it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    program = textwrap.dedent(code)
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def distribution(folder: Path, name: str, points: dict[str, str], **modules: str) -> Path:
    """Write an installed distribution with entry points of the group dsinga.addons, and its modules."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = (f"{point} = {value}" for point, value in points.items())
    (info / "entry_points.txt").write_text("\n".join(["[dsinga.addons]", *lines]) + "\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(text))
    return folder


def test_only_the_module_of_a_component_is_imported():
    lines = python("""
        import sys
        from dsinga.base.registry import lookup, registered_numbers
        print(registered_numbers("layer")["kConvolution"])
        print(lookup("layer", "kReLU").__name__, "dsinga.layers.images.convolution" in sys.modules)
        print("importlib.metadata" in sys.modules and __import__("dsinga.base.components").base.components.scanned())
    """)
    assert lines == ["201", "ReLU False", "False"]


def test_what_another_distribution_brings_is_imported_when_it_is_asked_for(tmp_path):
    text = """
        print("imported")
        import dsinga
        @dsinga.register("metric", "wave")
        def wave(labels, predictions):
            return 0.0
        def swell(labels, predictions):
            return 1.0
    """
    folder = distribution(tmp_path, "waves", {"metric.wave": "waves", "metric.swell": "waves:swell"}, waves=text)
    lines = python(
        """
        from dsinga.base.registry import entries, find, lookup, registered
        print(registered("metric"), [*entries("metric")])
        print(lookup("metric", "swell").__name__, lookup("metric", "wave").__name__, find("metric", "wove"))
        """,
        folder,
    )
    ours = "'accuracy', 'roc_auc', 'average_precision'"
    assert lines[0] == f"[{ours}, 'wave', 'swell'] [{ours}]"
    assert lines[1:] == ["imported", "swell wave None"]


@pytest.mark.parametrize(
    ("points", "name", "sentence"),
    [
        ({"metric.wave": "waves"}, "wave", r"waves and ripples both have a metric called 'wave'; uninstall one"),
        ({"metric.roc_auc": "waves"}, "roc_auc", r"dsinga and ripples both have a metric called 'roc_auc'"),
        ({"metric.swell": "waves"}, "swell", r"the add-on ripples registers no metric 'swell' in waves"),
        ({"metric.swell": "waves:nothing"}, "swell", r"'swell' of the add-on ripples cannot be imported: .*nothing"),
        ({"metric.swell": "broken"}, "swell", r"'swell' of the add-on ripples cannot be imported: .*broken.py:1:"),
    ],
)
def test_faulty_addons_are_named(tmp_path, points, name, sentence):
    text = '@__import__("dsinga").register("metric", "wave")\ndef wave(labels, predictions):\n    return 0.0\n'
    folder = distribution(tmp_path, "waves", {"metric.wave": "waves"}, waves=text, broken="1 / 0")
    lines = python(
        f"""
        from dsinga.base.registry import check_owner, find, UserError
        try:
            check_owner("metric", {name!r})
            find("metric", {name!r})
        except UserError as error:
            print(error)
        print(find("layer", "kReLU"))
        """,
        distribution(tmp_path / "more", "ripples", points),
        folder,
    )
    assert re.search(sentence, lines[0].replace("ripples and waves", "waves and ripples")), lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"own.py cannot be imported: No such file or directory"),
        ("def", r"own.py:1: invalid syntax"),
        ("x = 1\n", r"own.py registers nothing; decorate .* @dsinga.register"),
        ("import nothing_there", r"own.py:1: ModuleNotFoundError: No module named 'nothing_there'"),
        ("def f():\n  1 / 0\n\nf()", r"own.py:2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)", r"own.py:2: SystemExit: 3"),
        ("import dsinga\ndsinga.register('layr', 'X')", r"own.py:2: 'layr' is not a kind of registry"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path, text, message):
    path = tmp_path / "own.py"
    if text:
        path.write_text(text)
    refused(lambda: import_file(path), rf"^{tmp_path}/{message}[^\n]*$")
    assert "imported_own" not in sys.modules


def test_an_unknown_name_says_how_to_register_it():
    own = "if it is your own, decorate it with @dsinga.register.* and import the module that does so$"
    refused(lambda: lookup("updater", "Xyzzy"), f"no updater is registered as 'Xyzzy'; {own}")
    refused(lambda: lookup("layer", "kRELU"), f"'kRELU'; did you mean 'kReLU'[?] {own}")
    with command_line(["train"]), pytest.raises(UserError, match="'Xyzzy'; if it is your own, .* and --import FILE$"):
        lookup("updater", "Xyzzy")


@pytest.mark.parametrize(
    ("name", "names", "suggested"),
    [("kADAM", ["kAdaGrad", "kAdam"], "kAdam"), ("ABc", ["abc", "ABC"], "ABC"), ("ABX", ["abc", "xyz"], "abc")],
)
def test_the_nearest_name_is_found_in_any_case(name: str, names: list[str], suggested: str):
    assert nearest(name, names) == f"; did you mean {suggested!r}?"


def test_no_name_is_suggested_where_none_is_similar():
    assert nearest("kADAM", ["kSGD", "", "dense"]) == ""


def test_a_file_is_compiled_without_inherited_future_imports(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("import dsinga\n@dsinga.register('schedule', 'Flat')\ndef flat(conf: int): ...\n")
    assert import_file(path).flat.__annotations__ == {"conf": int}  # not "int", as with annotations from __future__


def test_of_many_names_those_most_alike_are_listed_and_the_others_counted():
    few, many = ["data", "ip1", "loss"], [*(f"branch{number}" for number in range(300)), "loss", "pool"]
    assert listed([]) == "none"
    assert listed(many[:LISTED]) == ", ".join(many[:LISTED])
    assert listed(many).endswith(f", branch{LISTED - 1} and {len(many) - LISTED} more")
    assert nearest_or_listed("loos", few, "its layers are") == "; did you mean 'loss'?"
    assert nearest_or_listed("qqq", few, "its layers are") == "; its layers are data, ip1, loss"
    hint = nearest_or_listed("xoxs", many, "its layers are")
    assert hint.startswith("; its layers are loss, pool, ")
    assert hint.endswith(" and 290 more")


def test_a_job_with_a_layer_that_two_distributions_have_is_refused(tmp_path):
    lines = python(
        """
        from dsinga.base.registry import UserError
        from dsinga.job import check, loads
        layers = 'layer { name: "a" type: kRecordInput store_conf { path: "x" batchsize: 1 } }'
        layers += 'layer { name: "b" srclayers: "a" type: kReLU }'
        try:
            check(loads("train_steps: 1 neuralnet {" + layers + "}"))
        except UserError as error:
            print(error)
        """,
        distribution(tmp_path, "ripples", {"layer.kReLU": "ripples"}),
    )
    assert "dsinga and ripples both have a layer called 'kReLU'; uninstall one" in lines[0]
