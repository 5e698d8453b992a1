"""Answers of nn, with all add-ons, to names and arguments of Keras, which name what exists."""

import re
from operator import attrgetter
from pathlib import Path

from dsinga import extensions, nn
from dsinga.extensions.extension import ARGUMENTS as CALLBACK_ARGUMENTS
from dsinga.nn.words.keras_arguments import ARGUMENTS, LAYER_ATTRIBUTES, LOSS_NAMES, MODEL_ATTRIBUTES, NAMES


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
