"""Names to classes, and files of the user's own that register some."""

from __future__ import annotations

import subprocess
import sys

import pytest
from distributed.protocol.pickle import dumps

from dsinga.errors import UserError
from dsinga.job import LayerConf
from dsinga.registry import import_file, lookup, registered

OWN = """
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


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_file_registers_what_it_defines(own):
    module = import_file(own)
    assert lookup("layer", "Twice") is module.Twice
    assert "Twice" in registered("layer")
    assert module.__name__ not in sys.modules


def test_what_a_file_defines_travels_to_a_process_that_has_not_got_it(own):
    import_file(own)
    layer = lookup("layer", "Twice")(LayerConf(name="twice"), [(4, 3)])
    packed = dumps({"a layer among other things": layer})
    own.unlink()
    code = """if True:
        import pickle, sys
        (layer,) = pickle.loads(sys.stdin.buffer.read()).values()
        print(layer.compute_feature([], [21.0], None).feature)"""
    done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, timeout=60)
    assert done.stdout.decode() == "42.0\n", done.stderr.decode()


@pytest.mark.parametrize(
    ("text", "message"), [(None, r"own.py cannot be imported: .*No such file"), ("def", r"cannot be imported: invalid")]
)
def test_a_file_that_is_not_there_or_is_no_python_is_refused(tmp_path, text, message):
    path = tmp_path / "own.py"
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        import_file(path)


def test_what_the_file_raises_says_where(tmp_path):
    (tmp_path / "own.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError) as raised:
        import_file(tmp_path / "own.py")
    assert raised.value.__notes__ == [f"in {tmp_path / 'own.py'}, which was to be imported"]
    assert "imported_own" not in sys.modules
