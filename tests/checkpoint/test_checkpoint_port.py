"""Loading the params of one net into another: by name, later paths first, with errors for differing shapes."""

import logging
import os

import numpy as np
import pytest
import safetensors.numpy

from dsinga.checkpoint import Checkpoint, export_safetensors, port, read_checkpoint, read_params, write_checkpoint
from dsinga.errors import RunError, UserError

ONE, TWO = np.full((2, 3), 1, np.float32), np.full((2, 3), 2, np.float32)
SHAPES = {"w": (2, 3), "b": (3,), "fresh": (4,)}


def test_params_match_by_name_and_later_paths_override_earlier_ones(tmp_path):
    write_checkpoint(tmp_path / "old", 1, {"w": ONE, "b": np.ones(3, np.float32)}, {}, {})
    write_checkpoint(tmp_path / "new", 2, {"w": TWO}, {}, {})
    params = port(SHAPES, [tmp_path / "old" / "step1", tmp_path / "new" / "step2"], report=pytest.fail)
    assert params.keys() == {"w", "b"}  # "fresh" keeps its initial value
    np.testing.assert_array_equal(params["w"], TWO)
    np.testing.assert_array_equal(port(SHAPES, [tmp_path / "new", tmp_path / "old"])["w"], ONE)


@pytest.mark.parametrize("place", ["folder", "folder/checkpoint", "folder/checkpoint/step20"])
def test_a_folder_means_the_latest_checkpoint_in_it(tmp_path, monkeypatch, place):
    for step, array in ((3, ONE), (20, TWO)):
        write_checkpoint(tmp_path / "folder" / "checkpoint", step, {"w": array}, {}, {})
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(read_params(place)["w"], TWO)
    monkeypatch.chdir(tmp_path / "folder")
    np.testing.assert_array_equal(read_params(place, roots=["/nowhere", tmp_path])["w"], TWO)


def test_the_working_directory_comes_before_the_roots(tmp_path, monkeypatch):
    for name, array in (("working", ONE), ("root", TWO)):
        write_checkpoint(tmp_path / name / "checkpoint", 1, {"w": array}, {}, {})
    monkeypatch.chdir(tmp_path / "working")
    np.testing.assert_array_equal(read_params("checkpoint", [tmp_path / "root"])["w"], ONE)


@pytest.mark.parametrize("name", ["step6000-worker0", "step6000-worker0.bin"])
def test_singas_name_of_a_checkpoint_finds_the_checkpoint_of_that_step(tmp_path, name):
    write_checkpoint(tmp_path, 6000, {"w": TWO}, {}, {})
    write_checkpoint(tmp_path, 7000, {"w": ONE}, {}, {})
    np.testing.assert_array_equal(port(SHAPES, [name], roots=[tmp_path])["w"], TWO)


@pytest.mark.parametrize("save", [safetensors.numpy.save_file, lambda arrays, path: np.savez(path, **arrays)])
def test_npz_and_safetensors_files_can_be_read(tmp_path, save):
    path = tmp_path / ("w.npz" if save is not safetensors.numpy.save_file else "w.safetensors")
    save({"w": ONE.astype(np.float16)}, path)
    array = port(SHAPES, [path])["w"]
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, ONE)


def test_the_error_for_another_shape_names_the_param_both_shapes_and_the_file(tmp_path):
    path = write_checkpoint(tmp_path, 1, {"w": ONE.T}, {}, {})
    with pytest.raises(UserError, match=r"'w' has the shape \(2, 3\) in this net, but \(3, 2\) in .*/step1: "):
        port(SHAPES, [path])


def test_params_that_the_net_does_not_have_are_reported(tmp_path, caplog):
    path = write_checkpoint(tmp_path, 1, {"w": ONE, "z": ONE, "y": ONE}, {}, {})
    messages = []
    assert port(SHAPES, [path], report=messages.append).keys() == {"w"}
    assert messages == [f"the net has no params y, z of {path}: they are left out"]
    with caplog.at_level(logging.WARNING):
        port(SHAPES, [path])
    assert caplog.messages == messages


def test_the_error_for_a_missing_checkpoint_lists_the_paths(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"no checkpoint 'empty' \(looked for .*/empty, {tmp_path}/empty\)"):
        port(SHAPES, ["empty"], roots=[tmp_path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"\(looked for {tmp_path}/empty\)"):  # each path once
        port(SHAPES, ["empty"], roots=[tmp_path])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("data", [b"", b"not tensors at all", b"\xff" * 100, b"PK\x03\x04" + b"\0" * 40])
def test_files_of_another_kind_are_named(tmp_path, suffix, data):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"{path} cannot be read as {suffix[1:]}"):
        read_params(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".bin"])
def test_a_pipe_is_named(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    os.mkfifo(path)
    with pytest.raises(UserError, match=rf"{path}.*it is a pipe, not a file; write it to a file first"):
        read_params(path)


def test_an_array_without_a_name_is_refused(tmp_path):
    with open(tmp_path / "w.npz", "wb") as file:
        np.save(file, ONE)
    with pytest.raises(UserError, match=r"w\.npz cannot be read as npz: it has an array without a name"):
        read_params(tmp_path / "w.npz")


def test_npz_with_objects_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "w.npz", w=np.array([{}], object))
    with pytest.raises(UserError, match=r"w\.npz cannot be read as npz"):
        read_params(tmp_path / "w.npz")


def test_export_writes_a_valid_safetensors_file(tmp_path):
    params = {"w": ONE, "b": np.zeros(3, np.float32)}
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, 4, params, {"w": {"h": ONE}}, {}))
    path = tmp_path / "out.safetensors"
    path.write_text("something older")
    export_safetensors(checkpoint, path)
    exported = safetensors.numpy.load_file(path)
    assert exported.keys() == params.keys()
    assert list(read_params(path)) == ["w", "b"]  # the library sorts them by name
    for name, array in params.items():
        np.testing.assert_array_equal(exported[name], array)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.safetensors", "step4"]


def test_an_export_that_fails_leaves_the_old_file(tmp_path, small_disk):
    path = tmp_path / "out.safetensors"
    path.write_text("something older")
    with pytest.raises(RunError, match="cannot be written"):
        export_safetensors(Checkpoint(1, {"w": np.zeros(1 << 20, np.float32)}, {}, {}), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "something older"


def test_export_into_a_missing_folder_is_an_error(tmp_path):
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, 4, {"w": ONE}, {}, {}))
    with pytest.raises(RunError, match=r"nowhere/out\.safetensors cannot be written"):
        export_safetensors(checkpoint, tmp_path / "nowhere" / "out.safetensors")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_params_of_integers_are_refused_with_file_and_name(tmp_path, suffix):
    """As where a header says I32 in place of F32, so that the bits of weights would be read as whole numbers."""
    path = tmp_path / f"w{suffix}"
    save = safetensors.numpy.save_file if suffix == ".safetensors" else lambda arrays, path: np.savez(path, **arrays)
    save({"count": np.array(7), "w": np.ones(3, np.float32)}, path)
    assert read_params(path).keys() == {"count", "w"}  # PyTorch's num_batches_tracked
    save({"b": np.ones(3, np.float32), "w": np.ones(3, np.int32)}, path)
    with pytest.raises(UserError, match=rf"w\{suffix}: param 'w' is int32, not floating-point; write it as float32"):
        read_params(path)


def test_a_changed_dtype_in_a_header_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, path)
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(UserError, match=r"w\.safetensors: param 'w' is int32, not floating-point"):
        port({"w": (3,)}, [path])


def test_a_checkpoint_with_params_of_integers_is_damaged(tmp_path):
    write_checkpoint(tmp_path, 3, {"w": np.ones(3, np.float32)}, {}, {})
    write_checkpoint(tmp_path, 6, {"w": np.ones(3, np.int32)}, {}, {})
    with pytest.raises(
        UserError, match=r"step6/params.safetensors is damaged: param 'w' is int32, not floating-point; "
    ):
        read_checkpoint(tmp_path / "step6")
    with pytest.raises(UserError, match="the checkpoint before it is .*step3"):
        read_params(tmp_path)
