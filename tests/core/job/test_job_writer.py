"""Every job that is written is read back equal; and what a notebook shows of it."""

import enum
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.job import Job, LayerConf, LayerType, Message, loads, to_text
from dsinga.job.field_types import item_type
from dsinga.job.message import defaults, importable_fields, is_message
from dsinga.job.type_names import TypeName
from tests.support.texts import texts

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
FLOATS = st.floats(allow_nan=False)
PLAIN = st.booleans() | st.integers() | FLOATS | texts()


def repeatable(value):
    """Values of an extension's field: lists too, but not of lists, which the format does not have."""
    return value | st.lists(value, max_size=3)


EXTENSION = st.recursive(
    repeatable(PLAIN), lambda inner: repeatable(st.dictionaries(NAMES, inner, max_size=3)), max_leaves=6
)
SCALARS = {bool: st.booleans(), int: st.integers(-(2**63), 2**63 - 1), float: FLOATS, str: texts()}
SCALARS[dict] = st.dictionaries(NAMES, EXTENSION, max_size=2)


def value_of(hint, depth: int):
    """Return a strategy for the values of one field of the schema."""
    kind, repeated = item_type(hint)
    if is_message(kind):
        value = message_of(kind, depth - 1)
    elif issubclass(kind, (enum.Enum, TypeName)):
        value = st.sampled_from(list(kind.__members__.values()))
    else:
        value = SCALARS[kind]
    return st.lists(value, max_size=2) if repeated else value


def message_of(cls: type[Message], depth: int):
    """Return a strategy for messages of a class with some of their fields set, nested to ``depth``."""
    known = importable_fields(cls).items()
    types = {name: hint for name, hint in known if depth > 0 or not is_message(item_type(hint)[0])}
    required = {name: value_of(hint, depth) for name, hint in types.items() if name not in defaults(cls)}

    @st.composite
    def message(draw):
        optional = sorted(types.keys() - required.keys())
        chosen = draw(st.lists(st.sampled_from(optional), max_size=4, unique=True)) if optional else []
        values = {name: draw(value_of(types[name], depth)) for name in chosen}
        return cls(**values, **{name: draw(strategy) for name, strategy in required.items()})

    return message()


@given(message_of(Job, 4))
def test_every_job_is_read_back_equal(job):
    assert loads(to_text(job)) == job


@settings(max_examples=15)
@given(st.lists(message_of(LayerConf, 2), max_size=3))
def test_every_net_is_read_back_equal(layers):
    job = Job(net={"layer": layers})
    assert loads(to_text(job)) == job


@given(texts())
def test_every_string_is_read_back_equal(text):
    assert loads(to_text(Job(name=text))).name == text


def test_only_values_that_differ_from_the_defaults_are_written():
    assert to_text(Job()) == ""
    assert to_text(Job(train_steps=5, debug=False, disp_freq=0)) == "train_steps: 5\n"


def test_the_text_is_what_a_person_would_write():
    layer = LayerConf(
        name="a", type="kPooling", srclayers=["b"], pooling_conf={"kernel": 2}, bm_conf={}, include=["kTrain", "kTest"]
    )
    job = Job(name='"q"\n', net={"layer": [layer]}, updater={"type": "kSGD", "momentum": 0.9})
    assert to_text(job).splitlines() == [
        r'name: "\"q\"\n"',
        "updater { type: kSGD momentum: 0.9 }",
        "neuralnet {",
        "  layer {",
        '    name: "a"',
        "    type: kPooling",
        '    srclayers: "b"',
        "    include: [kTrain, kTest]",
        "    bm_conf { }",
        "    pooling_conf { kernel: 2 }",
        "  }",
        "}",
    ]
    assert job.neuralnet.layer[0].type is LayerType.kPooling


def test_print_shows_the_job_file():
    job = Job(name="small", net={"layer": [{"name": "act", "type": "kReLU"}]})
    assert str(job) == to_text(job).rstrip("\n") == 'name: "small"\nneuralnet { layer { name: "act" type: kReLU } }'
    assert repr(job).startswith("Job(name='small', neuralnet=")


JOB = """name: "<b>&"
train_steps: 10
cluster { nworkers_per_group: 2 }
net {
  layer { name: "data" type: kRecordInput include: kTrain store_conf { path: "a<b" shape: [1, 8, 8] std_value: 16 } }
  layer {
    name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 3 }
    param { name: "w" init { type: kGaussian std: 0.1 } } param { name: "b" share_from: "c" } param { name: "d" }
    param { init { type: kUniform } } param { share_from: "c" }
  }
  layer { name: "mine" user_type: "kMine" srclayers: "conv" srclayers: "data" exclude: kTest bm_conf { } }
}
"""


def picture(text):
    # Well-formed by construction: a parser that forgives nothing reads it.
    return ElementTree.fromstring(f"<body>{loads(text)._repr_html_()}</body>")


def test_there_is_a_row_for_each_layer():
    rows = [["".join(cell.itertext()) for cell in row] for row in picture(JOB).iter("tr")]
    assert rows == [
        ["layer", "type", "sources", "configuration", "params", "phases"],
        ["data", "kRecordInput", "", "path a<b, std_value 16, shape 1×8×8", "", "kTrain"],
        ["conv", "kConvolution", "data", "num_filters 3", "w (kGaussian), b = c, d, kUniform, = c", ""],
        ["mine", "kMine", "conv, data", "bm_conf", "", "not kTest"],
    ]


RATES = "learning_rate { type: kFixedStep fixedstep_conf { step: [0, 9] step_lr: [0.1, 1e-5] } }"


@pytest.mark.parametrize(
    ("text", "head"),
    [
        (JOB, "<b>&: 10 steps of kBP, kSGD at 0.01 (kFixed), 1 × 2 workers"),
        ("epochs: 3", "job: 3 epochs of kBP"),
        (f"updater {{ type: kSGD {RATES} }}", "job: 0 steps of kBP, kSGD at 0.1, 1e-05 (kFixedStep)"),
    ],
)
def test_the_first_line_summarises_the_training(text, head):
    assert "".join(picture(text).find("div").itertext()).startswith(head)


def test_an_empty_job_has_a_table_too():
    assert len(list(picture("").iter("tr"))) == 1
