"""Checkpoint directories are read bit for bit as written, are complete or absent, and damage is detected."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dsinga.base.errors import RunError
from dsinga.checkpoint import latest, read_checkpoint, read_newest_checkpoint, remove_old_checkpoints, write_checkpoint
from dsinga.checkpoint.directory import read_checkpoint_params
from dsinga.checkpoint.metadata import write_metadata
from tests.support.refusals import refused
from tests.support.texts import texts

PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.full(3, -0.0, np.float32)}
STATE = {"w": {"history": np.ones((3, 4), np.float32)}, "b": {"history": np.zeros(3, np.float32)}}
META = {"seed": 7, "job": "name: 'é'\n", "topology": {"workers": 2}}
FILES = ["params.safetensors", "state.safetensors", "checkpoint.json"]

names = texts(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
# Every bit pattern of float32, NaNs with a payload and negative zero among them.
arrays = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)).map(lambda a: a.view(np.float32))


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        np.testing.assert_array_equal(actual[name].view(np.uint32), array.view(np.uint32))


@given(
    params=st.dictionaries(names, arrays, max_size=3),
    state=st.dictionaries(names, st.dictionaries(names.filter(lambda slot: "/" not in slot), arrays, min_size=1)),
    step=st.integers(0, 10**9),
)
def test_arrays_are_read_bit_for_bit_as_written(params, state, step):
    with tempfile.TemporaryDirectory() as root:
        path = write_checkpoint(root, step, params, state, META)
        assert path == Path(root) / f"step{step}" == latest(root)
        checkpoint = read_checkpoint(path)
        assert sorted(os.listdir(root)) == [path.name]
    assert (checkpoint.step, checkpoint.meta) == (step, META)
    assert_same_bits(checkpoint.params, params)
    assert checkpoint.state.keys() == state.keys()
    for name, slots in state.items():
        assert_same_bits(checkpoint.state[name], slots)


def test_arrays_that_are_not_contiguous_or_writable_are_written_as_they_look(tmp_path):
    fortran = np.asfortranarray(PARAMS["w"])
    every_second = PARAMS["w"][:, ::2]
    frozen = PARAMS["b"].view()
    frozen.flags.writeable = False
    params = {"fortran": fortran, "every_second": every_second, "frozen": frozen}
    arrays = read_checkpoint(write_checkpoint(tmp_path, 1, params, {}, {})).params
    assert_same_bits(arrays, {name: array.copy() for name, array in params.items()})
    assert all(array.flags.writeable for array in arrays.values())


def test_names_of_params_may_have_slashes(tmp_path):
    state = {"net/conv1/weight": {"history": np.ones(2, np.float32)}}
    found = read_checkpoint(write_checkpoint(tmp_path, 1, {}, state, {})).state
    assert {param: list(slots) for param, slots in found.items()} == {"net/conv1/weight": ["history"]}


def test_names_and_shapes_can_be_read_without_the_arrays(tmp_path):
    about = json.loads((write_checkpoint(tmp_path, 3, PARAMS, STATE, META) / "checkpoint.json").read_text())
    assert about["step"] == 3
    assert about["params"] == {"w": [3, 4], "b": [3]}
    assert about["state"] == {"w/history": [3, 4], "b/history": [3]}
    assert about["meta"] == META


def test_latest_is_the_highest_step(tmp_path):
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    for step in (9, 100, 20):
        write_checkpoint(tmp_path, step, PARAMS, STATE, META)
    (tmp_path / ".step.draft-1" / "step600").mkdir(parents=True)
    (tmp_path / "step700-worker0").touch()
    assert latest(tmp_path) == tmp_path / "step100"
    (tmp_path / "step500").mkdir()  # what is left of a checkpoint is not passed over silently
    assert latest(tmp_path) == tmp_path / "step500"


@pytest.mark.parametrize("name", FILES)
def test_the_newest_undamaged_checkpoint_is_read_and_the_others_are_named(tmp_path, name):
    assert read_newest_checkpoint(tmp_path) is None
    for step in (9, 20, 100):
        write_checkpoint(tmp_path, step, {"w": np.full(3, step, np.float32)}, STATE, META)
    (tmp_path / "step100" / name).unlink()
    (tmp_path / "step300").touch()
    path, checkpoint, faults = read_newest_checkpoint(tmp_path)
    assert (path, checkpoint.step, checkpoint.params["w"][0]) == (tmp_path / "step20", 20, 20)
    assert len(faults) == 2
    assert str(tmp_path / "step300") in faults[0]
    assert str(tmp_path / "step100") in faults[1]
    assert name in faults[1]
    for step in (9, 20):
        (tmp_path / f"step{step}" / name).write_bytes(b"")
    refused(lambda: read_newest_checkpoint(tmp_path), r"in .* is intact: .*step300.*\(and 3 more\); move that folder")


def test_a_step_that_is_written_again_is_replaced(tmp_path):
    write_checkpoint(tmp_path, 5, PARAMS, STATE, {"try": 1})
    write_checkpoint(tmp_path, 5, {"w": PARAMS["w"] + 1}, {}, {"try": 2})
    checkpoint = read_checkpoint(tmp_path / "step5")
    assert (checkpoint.state, checkpoint.meta) == ({}, {"try": 2})
    assert_same_bits(checkpoint.params, {"w": PARAMS["w"] + 1})
    assert os.listdir(tmp_path) == ["step5"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "gone"])
def test_damage_is_detected_and_the_file_is_named(tmp_path, name, damage):
    path = write_checkpoint(tmp_path, 5, PARAMS, STATE, META)
    data = bytearray((path / name).read_bytes())
    if damage == "gone":
        (path / name).unlink()
    elif damage == "flip" and name == "checkpoint.json":
        (path / name).write_bytes(data.replace(b'"step": 5', b'"step": 4'))
    else:
        data[-1] ^= 1
        (path / name).write_bytes({"cut": data[:-5], "empty": b"", "flip": data}[damage])
    refused(lambda: read_checkpoint(path), f"{name}.*; there is no earlier checkpoint beside it")
    if name != "state.safetensors":
        refused(lambda: read_checkpoint_params(path), name)


def test_a_damaged_checkpoint_names_the_one_before_it(tmp_path):
    for step in (3, 5, 8, 20):
        write_checkpoint(tmp_path, step, PARAMS, STATE, META)
    (tmp_path / "step8" / "state.safetensors").write_bytes(b"")
    refused(lambda: read_checkpoint(tmp_path / "step8"), "step8/state.safetensors", "step5$")


FINGERPRINTS = [None, 7, "x", [], {}, {"bytes": 1}, {"bytes": "1", "crc32": 0}, {"more": 1}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"step": step}, "json is damaged: .*step") for step in (-1, True, 1.5, "5", None, 10**30, [5])),
        *(({"files": {"params.safetensors": each}}, "json is damaged") for each in FINGERPRINTS),
        ({"format": 3}, "json has format 3.*upgrade dsinga"),
    ],
)
def test_metadata_that_cannot_be_are_refused_whatever_the_checksum(tmp_path, fields, message):
    path = write_checkpoint(tmp_path, 5, PARAMS, STATE, META)
    known = json.loads((path / "checkpoint.json").read_text())
    del known["checksum"]
    write_metadata(path, {**known, **fields, "files": known["files"] | fields.get("files", {})})
    refused(lambda: read_checkpoint(path), f"checkpoint.{message}")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[", 100_000),
        ("{", 1),
        ("1", 1),
        ("null", 1),
        ("\udcff", 1),
        ('{"step": ' + "9" * 5000 + "}", 1),
        (" ", 65 << 20),
    ],
)
def test_a_file_that_is_no_metadata_is_refused(tmp_path, text, count):
    path = write_checkpoint(tmp_path, 5, PARAMS, STATE, META)
    (path / "checkpoint.json").write_text(text * count, encoding="utf-8", errors="surrogateescape")
    refused(lambda: read_checkpoint(path), r"checkpoint.json is damaged: .{1,300}$")


def test_a_full_disk_leaves_the_last_checkpoint_and_no_partial_one(tmp_path, small_disk):
    write_checkpoint(tmp_path, 1, PARAMS, STATE, META)
    with pytest.raises(RunError, match="step2 cannot be written"):
        write_checkpoint(tmp_path, 2, {"w": np.zeros(1 << 20, np.float32)}, {}, {})
    assert os.listdir(tmp_path) == ["step1"]


# Writes checkpoints in which every number is the step. The process kills itself when a part of the second one is about
# to be written, after the parts before it.
WRITER = """
import os, signal, sys
import numpy as np
from dsinga.checkpoint import write_checkpoint

class DeadlyArray:
    shape = (3,)
    def __array__(self, *args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)

class DeadlyDict(dict):
    def items(self):
        os.kill(os.getpid(), signal.SIGKILL)

root, part = sys.argv[1:]
for step in (1, 2):
    array = np.full(1 << 20, step, np.float32)
    deadly = part if step == 2 else None
    params = {"w": DeadlyArray() if deadly == "params" else array}
    state = {"w": {"h": DeadlyArray() if deadly == "state" else array}}
    meta = {"step": step, "more": DeadlyDict(a=1) if deadly == "meta" else {}}
    write_checkpoint(root, step, params, state, meta)
"""


@pytest.mark.process
@pytest.mark.parametrize("part", ["params", "state", "meta"])
def test_a_process_killed_while_writing_leaves_the_checkpoint_before(tmp_path, part):
    killed = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), part], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    names = sorted(os.listdir(tmp_path))
    assert names[0].startswith(".step.draft-")  # the process was writing the second checkpoint
    assert names[1:] == ["step1"]
    assert latest(tmp_path) == tmp_path / "step1"
    checkpoint = read_checkpoint(tmp_path / "step1")
    assert checkpoint.step == checkpoint.meta["step"] == 1
    assert np.all(checkpoint.params["w"] == 1)
    assert np.all(checkpoint.state["w"]["h"] == 1)
    write_checkpoint(tmp_path, 2, PARAMS, STATE, META)
    assert sorted(os.listdir(tmp_path)) == ["step1", "step2"]


@settings(max_examples=15)  # each waits for the disk
@given(st.sets(st.integers(0, 50), min_size=1, max_size=6), st.integers(0, 4))
def test_the_newest_checkpoints_are_kept(steps, keep):
    with tempfile.TemporaryDirectory() as root:
        for step in steps:
            write_checkpoint(root, step, PARAMS, STATE, META)
        (Path(root) / "step99").mkdir()  # not a checkpoint, so it is neither counted nor removed
        (Path(root) / "step7-of-mine").mkdir()
        remove_old_checkpoints(root, keep)
        kept = sorted(steps)[-keep:]
        assert {path.name for path in Path(root).iterdir()} == {f"step{step}" for step in [*kept, 99]} | {
            "step7-of-mine"
        }
        assert read_newest_checkpoint(root)[1].step == max(steps)
