"""Names, docstrings, imports, lookups and add-ons of the package, read from its source, without importing it."""

import re
from collections import defaultdict
from collections.abc import Iterator

from dsinga.base.components import TABLE, addon_of
from tests.support.sources import (
    Source,
    circular,
    closing_lookups,
    import_graph,
    lookup_graph,
    module_name,
    source_of,
    sources,
)

LAYERS_WITH_A_KERNEL_OF_THE_SAME_NAME = {"GRU", "LSTM", "RNN"}
PUBLIC_NAMES_OF_TWO_PACKAGES = {"Model": ["nn/model/model.py", "rl/model.py"]}  # as in Keras, and as in PARL
OUTSIDE = {"convert", "estimators", "models", "rl", "testing"}  # add-ons besides those in addons/
OF_OTHER_LIBRARIES = {"_data", "_meta"}  # of variables of xarray; of collections of Dask


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for file, source in sources().items():
        for name in source.classes:
            if name != "Conf":  # the settings of a component, in its class
                places[name].append(file.removeprefix("dsinga/"))
    clashes = {name: files for name, files in places.items() if len(files) > 1}
    for name in LAYERS_WITH_A_KERNEL_OF_THE_SAME_NAME:
        assert sorted(file.split("/")[0] for file in clashes.pop(name)) == ["layers", "ops"]
    for name, files in PUBLIC_NAMES_OF_TWO_PACKAGES.items():
        assert clashes.pop(name) == files
    assert not clashes


def test_every_docstring_says_what_its_object_does():
    """A docstring that begins with a reference to another one says too little."""
    texts = [(f"{file}:{line}", text) for file, source in sources().items() for line, text in source.docstrings]
    assert not [place for place, text in texts if re.match(r"See :\w+:", text)]


def test_no_import_is_relative():
    assert not [f"{file}:{line}" for file, source in sources().items() for line in source.relative_imports]


def test_no_files_import_each_other():
    assert not circular(import_graph(sources()))


def test_lookups_close_no_circle_of_imports():
    """A lookup of a component by a literal kind and name counts as an import."""
    assert not closing_lookups(import_graph(sources()), lookup_graph(sources(), TABLE))


def test_no_addon_asks_the_registry_for_a_component_of_its_own():
    lookups = lookup_graph(sources(), TABLE)
    assert any(lookups.values())
    own = [(name, target) for name in lookups for target in lookups[name] if addon(name) == addon(target) is not None]
    assert not own


def test_a_hook_has_a_type_that_both_sides_name():
    """Those that are public functions, too, keep their own type, by which users call them."""
    implement, hooks = set(), set()
    for name, decorators in (each for source in sources().values() for each in source.decorated):
        hooks |= {name for decorator in decorators if decorator.startswith("register('hook'")}
        implement |= {name for decorator in decorators if decorator.startswith("implements(")}
    assert hooks - implement <= {"evaluate_fields", "predict_lazily"}


def test_no_two_addons_need_each_other():
    needs: dict[str, set[str]] = {}
    for graph in (import_graph(sources()), lookup_graph(sources(), TABLE)):
        for name, targets in graph.items():
            if of := addon(name):
                needs.setdefault(of, set()).update(each for each in map(addon, targets) if each and each != of)
    needs = {of: needs.get(of, set()) for of in {*needs, *(each for targets in needs.values() for each in targets)}}
    assert not circular(needs)


def addon(file: str) -> str | None:
    """Return the add-on that a file belongs to, None for a file of another room."""
    return addon_of(module_name(file)) if file.startswith("dsinga/addons/") else None


def test_addons_reach_into_no_private_name_of_the_core_or_the_cluster():
    assert not [*reaches(sources())]


def test_a_reach_is_found():
    texts = {
        "dsinga/nn/net.py": "class Net:\n    def _params(self): ...",
        "dsinga/addons/lora/low_rank.py": "def merge(net):\n    own(net._params)\n    net._own = net._data",
    }
    files = {file: source_of(text) for file, text in texts.items()}
    assert [*reaches(files)] == ["dsinga/addons/lora/low_rank.py:2 _params"]


def reaches(files: dict[str, Source]) -> Iterator[str]:
    """Yield the places in add-ons that name what only files of the core, or of the cluster, define as private."""
    private: dict[str | None, set[str]] = defaultdict(set)
    for file, source in files.items():
        private[outside(file)] |= source.private
    for file, source in files.items():
        if of := outside(file):
            foreign = private[None] - private[of] - OF_OTHER_LIBRARIES
            yield from (f"{file}:{line} {name}" for line, name in source.reached if name in foreign)


def outside(file: str) -> str | None:
    """Return the add-on or face that a file belongs to, None for a file of the core or the cluster."""
    part = file.split("/")[1]
    return addon_of(module_name(file)) if part in OUTSIDE | {"addons"} else None
