"""What editors complete, and the fields of a job that fit and job take; mypy checks the program typed_program.py."""

import ast
import csv
import inspect
from collections import ChainMap
from importlib import resources

import jedi
import pytest

import dsinga
from dsinga import nn
from dsinga.base.registry import lookup, registered
from dsinga.job import Job
from dsinga.job.message import field_types
from dsinga.nn.model import added_methods
from dsinga.nn.model.given_data import FitFields, JobFields
from dsinga.nn.model.trainable import Trainable


@pytest.fixture(scope="module", autouse=True)
def parsed_files(tmp_path_factory):
    """Jedi reads what another process is writing to its cache."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jedi.settings, "cache_directory", str(tmp_path_factory.mktemp("jedi")))
        yield


@pytest.mark.parametrize(("function", "fields"), [(Trainable.fit, FitFields), (Trainable.job, JobFields)])
def test_fit_and_job_take_every_field_of_a_job(function, fields):
    named = set(inspect.signature(inspect.unwrap(function)).parameters) - {"job_fields"}
    known = {name for each in (JobFields, fields) for name in each.__annotations__}
    of_addons = {name.removeprefix("Job.") for name in registered("message") if name.startswith("Job.")}
    assert known == {*field_types(Job), *of_addons} - named - {"resume"}  # which dsinga.train takes


def test_type_checkers_know_the_words_and_methods_of_add_ons() -> None:
    """The source has them for type checkers alone, which ask no registry."""
    nodes = [*ast.walk(ast.parse(inspect.getsource(nn)))]
    known = {node.id for node in nodes if isinstance(node, ast.Name)}
    known |= {name.asname or name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
    table = resources.files("dsinga.base").joinpath("components.csv").read_text("utf-8")
    rows = [row for row in csv.DictReader(table.splitlines()) if row["kind"] == "layer"]
    ours = {row["name"].removeprefix("k") for row in rows} - {*registered("layer")}  # tests register layers without a k
    assert {*ChainMap(*(getattr(nn, kind) for kind in nn._DERIVED))} & ours <= known
    methods = {
        node.name: [argument.arg for argument in node.args.args[1:]]
        for node in ast.walk(ast.parse(inspect.getsource(added_methods)))
        if isinstance(node, ast.FunctionDef) and node.name in registered("method")
    }
    functions = {name: [*inspect.signature(lookup("method", name)).parameters][1:] for name in registered("method")}
    assert methods == functions


WORDS = (
    "Dense Conv2D LSTM Embedding Dropout BatchNormalization MaxPooling2D MultiHeadAttention Reshape LayerNormalization "
    "SoftmaxLoss Adam CosineDecay Cluster"
).split()


# One of each kind of word: a layer, a loss, an updater, a message of the job, a method.
QUICK = {"Dense", "SoftmaxLoss", "Adam", "Cluster", "Sequential().fit"}


@pytest.mark.parametrize(
    "word", [pytest.param(word, marks=() if word in QUICK else pytest.mark.ci) for word in (*WORDS, "Sequential().fit")]
)
def test_notebooks_complete_all_arguments_and_editors_those_of_the_function(word):
    function = nn.Sequential.fit if word.endswith("fit") else getattr(nn, word)
    arguments = set(inspect.signature(function).parameters) - {"self", "job_fields", "fields"}
    shared = {"name", "trainable"} if word in WORDS[:11] else {"clip_norm"} if word == "Adam" else set()
    assert shared <= arguments
    call = "model.fit(" if word.endswith("fit") else f"nn.{word}("
    in_notebooks = completed(jedi.Interpreter(call, [{"nn": nn, "model": nn.Sequential()}]))
    assert arguments <= in_notebooks
    program = f"from dsinga import nn\nmodel = nn.Sequential()\n{call}"
    here = jedi.InterpreterEnvironment()  # which starts no process
    in_editors = completed(jedi.Script(program, environment=here))
    assert (
        set(inspect.signature(inspect.unwrap(function)).parameters) - {"self", "fields", "job_fields", "common"}
        <= in_editors
    )


def completed(script: jedi.Script) -> set[str]:
    """Return the names of the arguments that are offered."""
    return {name.name.removesuffix("=") for name in script.complete() if name.name.endswith("=")}


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        *((f"nn.{module}.De", "Dense") for module in ("layers", "models", "utils")),
        *((f"{module}.Early", "EarlyStopping") for module in ("nn.callbacks", "dsinga.extensions")),
        ("dsinga.data.open_r", "open_records"),
        ("nn.layers.Dr", "Dropout"),
    ],
)
def test_modules_complete_their_names_in_editors_and_notebooks(begin, name):
    program = f"import dsinga\nfrom dsinga import nn\n{begin}"
    offered = jedi.Script(program, environment=jedi.InterpreterEnvironment()).complete()
    in_notebooks = jedi.Interpreter(begin, [{"nn": nn, "dsinga": dsinga}]).complete()
    assert name in {found.name for found in offered} & {found.name for found in in_notebooks}


def test_words_of_metrics_and_initialisers_complete_in_notebooks():
    assert "AUC" in dir(nn.metrics)
    assert "HeNormal" in dir(nn.initializers)
