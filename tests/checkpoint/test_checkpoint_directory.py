"""Checkpoint directories: bits in, bits out; complete or not there; damage is noticed and named."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dsinga.checkpoint import latest, read_checkpoint, write_checkpoint
from dsinga.errors import RunError, UserError

PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.full(3, -0.0, np.float32)}
STATE = {"w": {"history": np.ones((3, 4), np.float32)}, "b": {"history": np.zeros(3, np.float32)}}
META = {"seed": 7, "job": "name: 'é'\n", "topology": {"workers": 2}}
FILES = ["params.safetensors", "state.safetensors", "checkpoint.json"]

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
# Every bit pattern of float32, NaNs with a payload and negative zero among them.
arrays = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)).map(lambda a: a.view(np.float32))


def assert_same_bits(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name].view(np.uint32), array.view(np.uint32))


@given(
    params=st.dictionaries(names, arrays, max_size=3),
    state=st.dictionaries(names, st.dictionaries(names.filter(lambda slot: "/" not in slot), arrays, min_size=1)),
    step=st.integers(0, 10**9),
)
def test_what_is_read_has_the_bits_of_what_was_written(params, state, step):
    with tempfile.TemporaryDirectory() as root:
        path = write_checkpoint(root, step, params, state, META)
        assert path == Path(root) / f"step{step}" == latest(root)
        found = read_checkpoint(path)
        assert sorted(os.listdir(root)) == [path.name]
    assert (found.step, found.meta) == (step, META)
    assert_same_bits(found.params, params)
    assert found.state.keys() == state.keys()
    for name, slots in state.items():
        assert_same_bits(found.state[name], slots)


def test_arrays_that_are_not_contiguous_or_writable_are_written_as_they_look(tmp_path):
    turned = np.asfortranarray(PARAMS["w"])
    every_second = PARAMS["w"][:, ::2]
    frozen = PARAMS["b"].view()
    frozen.flags.writeable = False
    params = {"turned": turned, "every_second": every_second, "frozen": frozen}
    found = read_checkpoint(write_checkpoint(tmp_path, 1, params, {}, {})).params
    assert_same_bits(found, {name: array.copy() for name, array in params.items()})
    assert all(array.flags.writeable for array in found.values())


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


def test_latest_is_the_highest_step_that_is_complete(tmp_path):
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    for step in (9, 100, 20):
        write_checkpoint(tmp_path, step, PARAMS, STATE, META)
    (tmp_path / "step500").mkdir()
    for name in FILES[:2]:
        (tmp_path / "step500" / name).touch()
    (tmp_path / ".step600.partial").mkdir()
    (tmp_path / "step700-worker0").touch()
    assert latest(tmp_path) == tmp_path / "step100"


def test_a_step_that_is_written_again_is_replaced(tmp_path):
    write_checkpoint(tmp_path, 5, PARAMS, STATE, {"try": 1})
    write_checkpoint(tmp_path, 5, {"w": PARAMS["w"] + 1}, {}, {"try": 2})
    found = read_checkpoint(tmp_path / "step5")
    assert (found.state, found.meta) == ({}, {"try": 2})
    assert_same_bits(found.params, {"w": PARAMS["w"] + 1})
    assert os.listdir(tmp_path) == ["step5"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "gone"])
def test_damage_is_noticed_and_the_file_is_named(tmp_path, name, damage):
    path = write_checkpoint(tmp_path, 5, PARAMS, STATE, META)
    data = bytearray((path / name).read_bytes())
    if damage == "gone":
        (path / name).unlink()
    elif damage == "flip" and name == "checkpoint.json":
        (path / name).write_bytes(data.replace(b'"crc32": ', b'"crc32": 1'))
    else:
        data[-1] ^= 1
        (path / name).write_bytes({"cut": data[:-5], "empty": b"", "flip": data}[damage])
    # Wrong fingerprints in checkpoint.json look like damage to the files that they are of.
    named = "state.safetensors" if (name, damage) == ("checkpoint.json", "flip") else name
    with pytest.raises(UserError, match=named):
        read_checkpoint(path)


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path):
    path = write_checkpoint(tmp_path, 5, PARAMS, STATE, META)
    about = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(about | {"format": 2}))
    with pytest.raises(UserError, match=r"checkpoint.json is of format 2.*upgrade dsinga"):
        read_checkpoint(path)


def test_a_disk_that_is_full_leaves_the_last_checkpoint_and_no_trace(tmp_path, small_disk):
    write_checkpoint(tmp_path, 1, PARAMS, STATE, META)
    with pytest.raises(RunError, match="step2 cannot be written"):
        write_checkpoint(tmp_path, 2, {"w": np.zeros(1 << 20, np.float32)}, {}, {})
    assert os.listdir(tmp_path) == ["step1"]


# Writes checkpoints in which every number is the step, until it is killed. With a part named, it kills itself when that
# part of the second checkpoint is about to be written; the parts before it are on the disk by then.
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
for step in range(1, 10000):
    array = np.full(1 << 20, step, np.float32)
    deadly = part if step == 2 else None
    params = {"w": DeadlyArray() if deadly == "params" else array}
    state = {"w": {"h": DeadlyArray() if deadly == "state" else array}}
    meta = {"step": step, "more": DeadlyDict(a=1) if deadly == "meta" else {}}
    write_checkpoint(root, step, params, state, meta)
"""


def writer(root, part=""):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(root), part])


def assert_whole(path, step):
    found = read_checkpoint(path)
    assert found.step == found.meta["step"] == step
    assert np.all(found.params["w"] == step)
    assert np.all(found.state["w"]["h"] == step)


@pytest.mark.process
@pytest.mark.parametrize("part", ["params", "state", "meta"])
def test_a_process_killed_in_the_middle_leaves_the_checkpoint_before(tmp_path, part):
    assert writer(tmp_path, part).wait(60) == -signal.SIGKILL
    left = sorted(os.listdir(tmp_path))
    assert left == [".step2.partial", "step1"]  # it was in the middle
    assert latest(tmp_path) == tmp_path / "step1"
    assert_whole(tmp_path / "step1", 1)
    write_checkpoint(tmp_path, 2, PARAMS, STATE, META)
    assert sorted(os.listdir(tmp_path)) == ["step1", "step2"]


@pytest.mark.process
@pytest.mark.parametrize("file", FILES)
def test_a_process_killed_at_any_moment_leaves_whole_checkpoints_only(tmp_path, file):
    process = writer(tmp_path)
    try:
        while not (tmp_path / ".step3.partial" / file).exists() and not (tmp_path / "step4").exists():
            assert process.poll() is None
    finally:
        process.kill()
        process.wait(60)
    steps = sorted(int(path.name[4:]) for path in tmp_path.glob("step*"))
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= 2
    assert latest(tmp_path) == tmp_path / f"step{steps[-1]}"
    for step in steps:
        assert_whole(tmp_path / f"step{step}", step)
