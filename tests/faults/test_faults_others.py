"""Saves of other users, readers who may not write, readers beside a save, and the modes of what is written."""

import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.durable_files import COMPLETE, SAVED, draft_folder
from dsinga.base.errors import UserError
from dsinga.checkpoint.porting import read_params
from dsinga.convert import load_weights, save_weights
from dsinga.estimators import Regressor, load
from tests.support.programs import python
from tests.support.refusals import refused

NOBODY = 65534
X, Y = np.eye(4, dtype=np.float32), np.arange(4, dtype=np.float32)[:, None]


def net(value: float) -> nn.Sequential:
    model = nn.Sequential([nn.Input((4,)), nn.Dense(1, name="out")])
    model.compile("sgd", "mse")
    model.params = {name: np.full_like(array, value) for name, array in model.params.items()}
    return model


def fitted(value: float) -> Regressor:
    estimator = Regressor(hidden=(), epochs=1, random_state=1).fit(X, Y[:, 0])
    estimator.params_ = {name: np.full_like(array, value) for name, array in estimator.params_.items()}
    return estimator


def params_after(load: Callable[[Any], object]) -> Any:
    load(model := net(0))
    return model.params


# What writes a folder with a number in all params, and what reads the params back.
FACES: dict[str, tuple[Callable[[Path, float], object], Callable[[Path], Any]]] = {
    "load_model": (lambda path, v: net(v).save(path), lambda path: nn.load_model(path).params),
    "load_weights": (lambda path, v: net(v).save(path), lambda path: params_after(lambda m: m.load_weights(path))),
    "read_params": (lambda path, v: net(v).save(path), lambda path: read_params(path / "params.safetensors")),
    "convert": (lambda path, v: save_weights(net(v), path), lambda path: params_after(lambda m: load_weights(m, path))),
    "load_onnx": (lambda path, v: net(v).export(path / "a.onnx"), lambda path: nn.load_onnx(path / "a.onnx").params),
    "estimators": (lambda path, v: fitted(v).save(path), lambda path: load(path).params_),
}


def killed_save(folder: Path, face: str, complete: bool = True) -> None:
    """Leave what a process leaves that was killed when it had committed a save of 2 over one of 1."""
    write = FACES[face][0]
    folder.mkdir()
    write(folder, 1)
    write(folder.with_name("new"), 2)
    shutil.move(folder.with_name("new"), folder / SAVED)
    if complete:
        (folder / SAVED / COMPLETE).touch()


def value_of(params: Any) -> float:
    (value,) = {float(number) for array in params.values() for number in np.ravel(array)}
    return value


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("face", FACES)
def test_a_save_of_ones_own_is_finished(tmp_path: Path, face: str, complete: bool) -> None:
    killed_save(tmp_path / "folder", face, complete)
    (tmp_path / "folder" / SAVED / "notes.txt").write_text("of the user's own") if not complete else None
    assert value_of(FACES[face][1](tmp_path / "folder")) == 2
    left = [path for path in tree(tmp_path / "folder") if path.startswith(SAVED)]
    assert not left or (not complete and f"{SAVED}/notes.txt" in left)


OTHER_USER = pytest.param("another user's", marks=pytest.mark.skipif(os.geteuid() != 0, reason="makes files of a user"))


@pytest.mark.parametrize("whose", [OTHER_USER, "all may write", "a link", "a link for a draft"])
@pytest.mark.parametrize("face", FACES)
def test_a_save_of_somebody_else_is_not_finished(tmp_path: Path, face: str, whose: str) -> None:
    killed_save(folder := tmp_path / "folder", face)
    (folder / SAVED / "thesis.txt").touch()  # an empty file stands for one to remove
    (folder / SAVED / "kept.old").write_text("what a draft would move back")
    (folder / "thesis.txt").write_text("years of work")
    if whose == "another user's":
        os.chown(folder / SAVED, NOBODY, NOBODY)
    elif whose == "all may write":
        (folder / SAVED).chmod(0o777)
    else:
        shutil.move(folder / SAVED, target := tmp_path / "target")
        (folder / (SAVED if whose == "a link" else ".saved.draft-x")).symlink_to(target)
    before = tree(tmp_path)
    assert value_of(FACES[face][1](folder)) == 1
    if whose == "a link for a draft":
        with draft_folder(folder / "saved"):
            pass
    else:
        refused(lambda: FACES[face][0](folder, 3), "in the way|Not a directory|not empty", error=(UserError, OSError))
    assert tree(tmp_path) == before


READER = """
import os, sys
from pathlib import Path
from tests.faults.test_faults_others import FACES, value_of

folder, ready = map(Path, sys.argv[1:3])
values = []
for face, (write, read) in FACES.items():
    read(ready / face)  # imports what it needs
os.setuid(65534)
for face, (write, read) in FACES.items():
    values.append(value_of(read(folder / face)))
print(values)
"""


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_who_may_only_read_gets_what_a_killed_save_had_committed(tmp_path: Path) -> None:
    for path in tmp_path, *tmp_path.parents[:-2]:
        path.chmod(path.stat().st_mode | 0o055)
    (tmp_path / "ready").mkdir()
    for face in FACES:
        killed_save(tmp_path / face, face)
        shutil.copytree(tmp_path / face, tmp_path / "ready" / face)
        for name in os.listdir(tmp_path / face / SAVED)[:1]:  # it was moved before the process was killed
            os.replace(tmp_path / face / SAVED / name, tmp_path / face / name)
    before = tree(tmp_path)
    done = python("-c", READER, tmp_path, tmp_path / "ready")
    assert done.stdout.strip() == str([2.0] * len(FACES)), done.stderr
    kept = {path: content for path, content in before.items() if not path.startswith("ready")}
    assert {path: content for path, content in tree(tmp_path).items() if not path.startswith("ready")} == kept


@pytest.mark.ci
@pytest.mark.parametrize("face", [face for face in FACES if face != "estimators"])  # which saves to a new folder only
def test_a_reader_beside_a_process_that_saves_has_one_of_the_saves(tmp_path: Path, face: str) -> None:
    write, read = FACES[face]
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", 1)
    ended = threading.Event()

    def save() -> None:
        for number in range(12):
            write(tmp_path / "folder", 1 + number % 2)
        ended.set()

    thread = threading.Thread(target=save)
    thread.start()
    values = set()
    while not values or not ended.is_set():
        values.add(value_of(read(tmp_path / "folder")))
    thread.join(60)
    assert values <= {1, 2}


@pytest.mark.parametrize("path", ["https://me:hunter2@host/net", "s3://me:hunter2@bucket/net.onnx?token=hunter2"])
@pytest.mark.parametrize("face", [*FACES, "load_lora", "job", "from_job", "checkpoint"])
def test_passwords_in_urls_are_masked(face: str, path: str) -> None:
    faces: dict[str, Callable[[Any], Any]] = {
        **{name: read for name, (_, read) in FACES.items() if name not in ("read_params", "load_onnx")},
        "read_params": read_params,
        "load_onnx": nn.load_onnx,
        "load_lora": lambda path: net(0).load_lora(path),  # type: ignore[attr-defined]
        "job": dsinga.load,
        "from_job": nn.from_job,
        "checkpoint": lambda path: setattr(net(0), "params", path),
    }
    for form in (path, Path(path)):
        with pytest.raises(UserError) as caught:
            faces[face](form)
        assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


WRITER = """
import os, sys
os.umask(0o027)
os.chdir(sys.argv[1])
import numpy as np, dsinga
from dsinga import nn
from dsinga.commands.cli import main
from tests.faults.test_faults_others import X, Y, fitted, net, save_weights

model = net(1)
model.fit(X, Y, batch_size=2, epochs=1, verbose=0, workspace="run", checkpoint_freq=1)
model.save("model")
model.save_weights("weights.safetensors")
model.export("net.onnx")
save_weights(model, "weights", config={})
fitted(1).save("estimator")
model.add_lora(layers="*", rank=1)
model.save_lora("lora.safetensors")
np.savez("a.npz", x=X, label=np.arange(4))
for command in (["example", "digits", "digits"], ["data", "import", "npz", "a.npz", "store.zarr"]):
    sys.argv[1:] = command
    try:
        main()
    except SystemExit as end:
        assert not end.code
for folder, _, files in os.walk("."):
    for name in files:
        mode = os.stat(os.path.join(folder, name)).st_mode & 0o777
        mode == 0o640 or print(oct(mode), os.path.join(folder, name))
    folder == "." or os.stat(folder).st_mode & 0o777 == 0o750 or print("folder", folder)
"""


@pytest.mark.ci
def test_what_is_written_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    done = python("-c", WRITER, tmp_path)
    listed = [line for line in done.stdout.splitlines() if line.startswith(("0o", "folder"))]
    assert listed == [], done.stderr
    assert stat.S_IMODE(os.stat(tmp_path / "digits" / "job.conf").st_mode) == 0o640
