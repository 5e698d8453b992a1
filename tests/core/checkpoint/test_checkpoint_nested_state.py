"""The state of a training loop in a checkpoint: nested dicts of plain values and arrays."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.checkpoint import read_checkpoint, write_checkpoint
from dsinga.checkpoint.directory import LOOP
from dsinga.checkpoint.metadata import write_metadata
from dsinga.checkpoint.tensor_files import insert_arrays, separate_arrays
from tests.support.refusals import refused
from tests.support.texts import texts

ARRAYS = st.lists(st.floats(width=32), max_size=4).map(lambda numbers: np.array(numbers, np.float32))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts(max_size=5))
KEYS = texts(max_size=5).filter(lambda key: key != "$array")
STATES = st.dictionaries(
    KEYS, st.recursive(PLAIN | ARRAYS | st.lists(PLAIN), lambda inner: st.dictionaries(KEYS, inner), max_leaves=8)
)


def assert_equal(one, two) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_equal(one[key], two[key])
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype
    else:
        assert one == two


@given(STATES)
def test_a_state_comes_back_as_it_was(state) -> None:
    data, arrays = separate_arrays(state)
    assert_equal(insert_arrays(json.loads(json.dumps(data)), arrays), state)


def test_paths_of_arrays_may_collide() -> None:
    state = {"a": {"b": np.zeros(1)}, "a/b": np.ones(2)}
    assert_equal(insert_arrays(*separate_arrays(state)), state)


def test_numbers_of_numpy_are_plain_values() -> None:
    assert separate_arrays({"a": np.float32(0.5), "b": np.int64(3)}) == ({"a": 0.5, "b": 3}, {})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": {1, 2}}}, "a/b is neither plain data nor an array"),
        ({"a": {3: 1}}, "a has the key 3; keys must be strings"),
        ({"$array": 1}, "the state has the key '.array'"),
    ],
)
def test_what_cannot_be_saved_is_named(state, message: str) -> None:
    refused(lambda: separate_arrays(state), message, error=TypeError)


def test_a_checkpoint_holds_it(tmp_path: Path) -> None:
    loop = {"extensions": {"KeepBest": {"params": {"w": np.arange(3.0)}, "step": 4}}, "rate_factors": {"4": 0.5}}
    path = write_checkpoint(tmp_path, 5, {"w": np.ones(3)}, {}, {"seed": 1}, loop)
    checkpoint = read_checkpoint(path)
    assert_equal(checkpoint.loop, loop)
    (path / LOOP).write_bytes(b"x" * (path / LOOP).stat().st_size)
    refused(lambda: read_checkpoint(path), "loop.safetensors is damaged")


def test_a_checkpoint_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 5, {"w": np.ones(3)}, {}, {"seed": 1})
    assert not (path / LOOP).exists()
    metadata = json.loads((path / "checkpoint.json").read_text())
    del metadata["loop"], metadata["checksum"]
    (path / "checkpoint.json").write_text(json.dumps(metadata | {"format": 1}))
    assert read_checkpoint(path).loop == {}


def test_an_array_that_is_missing_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 5, {"w": np.ones(3)}, {}, {"seed": 1}, {"a": np.ones(2)})
    metadata = json.loads((path / "checkpoint.json").read_text())
    del metadata["checksum"]
    metadata["loop"]["a"]["$array"] = "b"
    write_metadata(path, metadata)
    refused(lambda: read_checkpoint(path), "checkpoint.json is damaged: KeyError")
