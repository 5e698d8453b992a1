"""What training the digits imports: the core alone, and how much of it."""

from __future__ import annotations

import pytest

from tests.support.imported_modules import COMMAND, LISTED, NN, imported, lines_of

CORE = set(
    "__main__ api base checkpoint commands data engine extensions job layers loop monitor net nn ops passes reading "
    "training".split()
)
# What takes a tenth of a second and more to be imported, and a fit of arrays does not need; zarr reads the digits.
HEAVY = {"zarr", "numcodecs", "fsspec", "dask", "distributed", "pandas", "xarray", "numba", "torch", "asyncio"}
HEAVY_FOR_ZARR = HEAVY - {"zarr", "numcodecs", "fsspec", "asyncio"}


@pytest.mark.parametrize(
    ("program", "most_files", "most_lines", "heavy"),
    [(COMMAND, 198, 32_900, HEAVY_FOR_ZARR), (NN, 225, 38_500, HEAVY)],
    ids=["command", "nn"],
)
def test_training_imports_the_core_alone_and_no_heavy_library(program, most_files, most_lines, heavy, tmp_path):
    names = imported(program, tmp_path)
    assert not heavy & {*names}
    modules = lines_of(names)
    new = ", ".join(sorted(modules.keys() - set(LISTED.read_text("utf-8").split()))) or "none"
    files, lines = len(modules), sum(modules.values())
    assert (files <= most_files, lines <= most_lines) == (True, True), (
        f"{files} files, {lines} lines; not in {LISTED.name}: {new}"
    )
    outside = [name for name in modules if name.count(".") and name.split(".")[1] not in CORE]
    assert not outside, "the core imports neither the cluster nor an add-on"
