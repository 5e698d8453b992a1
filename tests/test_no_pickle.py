"""What comes from a file or from outside of the run's own processes is never unpickled."""

import ast
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.base.errors import UserError
from dsinga.checkpoint import read_params
from dsinga.data import import_records, open_records
from tests.support.refusals import refused

PACKAGE = Path(dsinga.__file__).parent
# These unpickle what the driver has sent to Dask workers by Dask's comms; the contract of sources, what it has pickled.
UNPICKLING = {
    "cluster/dask/worker_memory.py",
    "cluster/preflight/worker_report.py",
    "rl/remote/rollout_actor.py",
    "testing/group_syncs.py",
    "testing/sources.py",
}
LOADERS = {"loads", "load", "Unpickler"}


def loaders(tree: ast.AST) -> set[str]:
    """Return the names in a module that unpickle: from a module called pickle, and allow_pickle=True."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "pickle" in (node.module or ""):
            found |= {alias.name for alias in node.names} & LOADERS
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and "pickle" in node.value.id:
            found |= {node.attr} & LOADERS
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found |= set() if isinstance(node.value, ast.Constant) and not node.value.value else {"allow_pickle"}
    return found


def test_no_other_module_unpickles() -> None:
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert {name for name, text in texts.items() if "pickle" in text and loaders(ast.parse(text))} == UNPICKLING


class Trap:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["filters", "compressor"])
def test_a_zarr_codec_that_unpickles_is_refused(tmp_path: Path, place: str) -> None:
    codec = {"id": "pickle", "protocol": 5}
    codecs = {"filters": [codec], "compressor": None} if place == "filters" else {"filters": None, "compressor": codec}
    array = {
        "zarr_format": 2,
        "shape": [9, 2],
        "chunks": [9, 2],
        "dtype": "<f4",
        "fill_value": 0,
        "order": "C",
        **codecs,
    }
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr/.zarray").write_text(json.dumps(array))
    (tmp_path / "x.zarr/0.0").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    refused(lambda: open_records(tmp_path / "x.zarr").read([0]), "cannot|no zarr")
    assert not (tmp_path / "sprung").exists()


def test_numpy_files_of_objects_are_refused(tmp_path: Path) -> None:
    objects = np.array([Trap(tmp_path / "sprung")] * 3, object)
    np.savez(tmp_path / "x.npz", data=objects, w1=objects)
    with pytest.raises(UserError):
        read_params(tmp_path / "x.npz")
    with pytest.raises(UserError):
        import_records("npz", tmp_path / "x.npz", tmp_path / "x.zarr")
    assert not (tmp_path / "sprung").exists()
