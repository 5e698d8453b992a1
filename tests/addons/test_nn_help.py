"""The help of nn and of models, with all add-ons: types, the arguments of training, the names that dir() shows."""

import importlib
import inspect
import re
import types
from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

import dsinga
from dsinga import extensions, nn
from dsinga.base.components import TABLE
from dsinga.extensions.extension import ARGUMENTS as CALLBACK_ARGUMENTS
from dsinga.nn.words.keras_arguments import ARGUMENTS, LAYER_ATTRIBUTES, LOSS_NAMES, MODEL_ATTRIBUTES, NAMES
from tests.core.base.test_registry import python
from tests.support import component_table

MODEL = nn.Sequential([nn.Input(4), nn.Dense(2)])
LAYERS = [
    name
    for name in sorted({*nn.__all__} - {"Lambda", "TextVectorization", "FieldError"})
    if inspect.isfunction(function := getattr(nn, name)) and "trainable" in inspect.signature(function).parameters
]


def public(owner):
    return {name for name in dir(owner) if not name.startswith("_")}


@pytest.mark.parametrize("name", LAYERS)
def test_help_explains_every_argument_of_a_layer(name):
    function = getattr(nn, name)
    text = inspect.getdoc(function)
    unexplained = [
        argument for argument in inspect.signature(function).parameters
        if f"    {argument}: " not in text and f"``{argument}``" not in text
    ]  # fmt: skip
    assert not unexplained


@pytest.mark.parametrize("owner", [nn, MODEL, dsinga], ids=["nn", "model", "dsinga"])
def test_annotations_are_types(owner):
    skipped = {"LocalNet", "Layer", "register"}  # classes, and a function of the lowest room
    for name in public(owner) - skipped:
        function = getattr(type(owner) if owner is MODEL else owner, name, None)
        if isinstance(function, (types.FunctionType, types.MethodType)):
            signature = inspect.signature(function)
            texts = {each.name for each in signature.parameters.values() if isinstance(each.annotation, str)}
            assert not texts, name
            assert "Ellipsis" not in str(signature), name


def test_fit_has_the_arguments_of_training_and_further_fields_in_one():
    arguments = inspect.signature(nn.Sequential.fit).parameters
    assert {"checkpoint_freq", "precision", "gpu", "micro_batches"} <= {*arguments}
    assert not {"id", "debug", "neuralnet", "test_freq"} & {*arguments}
    assert arguments["job_fields"].kind is inspect.Parameter.VAR_KEYWORD
    assert "docs/reference/job-fields.md" in inspect.getdoc(nn.Sequential.fit)


def test_the_fields_with_names_of_their_own_reach_the_job():
    model = nn.Sequential([nn.Input(4), nn.Dense(2)])
    model.compile("sgd", "mse")
    job = model.job(checkpoint_freq=3, precision="kBF16", gpu=[0], micro_batches=2, disp_freq=7)
    assert (job.checkpoint_freq, job.precision.name, job.gpu) == (3, "kBF16", [0])
    assert (job.micro_batches, job.disp_freq) == (2, 7)


def test_a_model_shows_what_a_user_may_use():
    shown = public(MODEL)
    assert len(shown) < 50
    assert {"fit", "predict", "evaluate", "summary", "save", "weights", "export", "pop"} <= shown
    assert not shown & {"parts_of_nets", "weights_of", "on_features", "label_examples", "make_job", "trained"}
    assert MODEL.make_job


def test_a_layer_shows_what_a_user_may_use():
    shown = public(nn.Dense(2))
    assert {"weights", "get_weights", "trainable", "name", "output", "settings"} <= shown
    assert not shown & {"remake", "write", "wrapped", "values"}


def test_nn_shows_its_words():
    assert not public(nn) & {"Any", "ChainMap", "TYPE_CHECKING", "lazy_names", "words", "writing", "layer_functions"}
    assert {*nn.__all__} <= public(nn)
    modules = ("metrics", "losses", "optimizers", "schedules", "augment", "initializers", "regularizers", "activations")
    for module in modules:
        assert not {"Any", "KERAS", "DERIVED", "NAMES", "UserError", "checked"} & {*dir(getattr(nn, module))}
    assert {"mse", "SoftmaxLoss"} <= {*dir(nn.losses)}
    assert "Dense" not in dir(nn.losses)


# Answers of nn, with all add-ons, to names and arguments of Keras, which name what exists.
def stem(name: str) -> str:
    """Return a component's name without what libraries write differently: axes, case, "Loss", "ization"."""
    short = re.sub(r"[123]D|Normali[sz]ation$|Norm$|Loss$|_", lambda end: "Norm" * end[0].startswith("N"), name)
    return short.lower()


def test_a_name_that_a_component_nearly_has_is_answered_by_that_component():
    components = {stem(name) for name in (*dir(nn), *dir(extensions), *dir(nn.augment)) if name[0].isupper()}
    assert {"rmsnorm", "mixup", "pooling", "hinge", "csv"} <= components
    answers = {**NAMES, **LOSS_NAMES}
    others = {"Mean", "Function", "distribution"}  # nn.MeanLoss, nn.FunctionLoss and nn.DistributionLoss are losses
    near = {name for name in answers if stem(name) in components} - others
    assert {"RMSNormalization", "UpSampling1D", "KLDivergence", "MixUp"} <= near
    silent = [name for name in near if stem(name) not in map(stem, re.findall(r"\w+", answers[name]))]
    assert not silent, "the answer does not name the component that exists"


def test_what_the_answers_name_exists():
    tables = (NAMES, LOSS_NAMES, CALLBACK_ARGUMENTS, ARGUMENTS, MODEL_ATTRIBUTES, LAYER_ATTRIBUTES)
    text = "\n".join(remedy for table in tables for remedy in table.values())
    for module, names in ((nn, r"\bnn\.([\w.]*\w)"), (extensions, r"\bextensions\.(\w+)")):
        for name in set(re.findall(names, text)):
            assert attrgetter(name)(module) is not None
    root = Path(__file__).parents[2]
    assert not [page for page in set(re.findall(r"docs/[\w/-]+\.md", text)) if not (root / page).is_file()]


# Names and components of add-ons: the table of components, faces, and what is said where an add-on is missing.
FACES = (
    "dsinga",
    *(f"dsinga.{name}" for name in ("api", "checkpoint", "data", "extensions", "monitor", "net", "training")),
)


@pytest.mark.parametrize("package", FACES)
def test_each_name_of_a_face_is_there(package):
    face = importlib.import_module(package)
    assert all(getattr(face, name) is not None for name in getattr(face, "__all__", dir(face)) if name[0] != "_")


def test_the_table_has_what_the_sources_register():
    rows = component_table.registered()
    assert TABLE.read_text("utf-8") == component_table.table(component_table.with_fields(rows)), (
        "run python -m tests.support.component_table"
    )
    numbers = Counter((row.kind, row.number, row.attribute) for row in rows if row.number is not None)
    assert len({key[:2] for key in numbers}) == len(numbers)


def test_a_component_of_an_addon_that_is_not_installed_is_named():
    lines = python('''
        import sys
        sys.modules["dsinga.addons.functions"] = None
        from dsinga.base.registry import entries, UserError
        from dsinga.job import loads
        print(len(entries("layer")) > 100)
        text = """name: "x"
        neuralnet { layer { name: "f"
          type: kFunction
          function_conf { function: "a:b" } } }"""
        try:
            loads(text)
        except UserError as error:
            print(error)
    ''')
    sentence = "belongs to the add-on dsinga.addons.functions, which is not installed; install all of dsinga by"
    assert lines[0] == "True"
    assert re.search(rf":4: layer 'f': layer 'kFunction' {sentence} 'pip install --force-reinstall dsinga'$", lines[1])
