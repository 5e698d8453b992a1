"""What training the digits imports: the core alone; and in how many files its functions are."""

import pytest

from tests.support.imported_modules import COMMAND, NN, imported

CORE = set(
    "__main__ api base checkpoint commands data engine extensions job layers loop monitor net nn ops passes reading "
    "training".split()
)
# What takes a tenth of a second and more to be imported, and a fit of arrays does not need; zarr reads the digits.
HEAVY = {"zarr", "numcodecs", "fsspec", "dask", "distributed", "pandas", "xarray", "numba", "torch", "asyncio"}
HEAVY_FOR_ZARR = HEAVY - {"zarr", "numcodecs", "fsspec", "asyncio"}


@pytest.mark.parametrize(
    ("program", "most_files", "heavy"), [(COMMAND, 160, HEAVY_FOR_ZARR), (NN, 170, HEAVY)], ids=["command", "nn"]
)
def test_training_imports_the_core_alone_and_no_heavy_library(program, most_files, heavy, tmp_path):
    names, files = imported(program, tmp_path)
    assert not heavy & {*names}
    outside = [name for name in names if name.startswith("dsinga.") and name.split(".")[1] not in CORE]
    assert not outside, "the core imports neither the cluster nor an add-on"
    assert len(files) <= most_files, "python -m tests.support.imported_modules prints them"
