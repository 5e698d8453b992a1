"""The command data import: what it prints, and a user's importer."""

import re
from pathlib import Path

from tests.support.command_line import Dsinga

USER_FILE = """import dsinga

@dsinga.register("importer", "powers")
def powers(source):
    import numpy
    from dsinga.data import Batch, StoreContents
    return {"": StoreContents([Batch(numpy.array([[1.0, 2.0, 4.0]]), None)])}
"""


def test_data_import_and_info(dsinga: Dsinga, folder: Path) -> None:
    (folder / "rows.csv").write_text("1,0.5,2\n0,1.5,3\n1,2.5,4\n")
    imported = dsinga("data", "import", "csv", "rows.csv", "rows.zarr")
    assert imported.returncode == 0, imported.stderr
    assert "3 records" in imported.stdout
    described = dsinga("data", "info", "rows.zarr")
    assert re.search(r"records +3\n", described.stdout)
    again = dsinga("data", "import", "csv", "rows.csv", "rows.zarr")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


def test_an_unknown_kind_is_one_message_and_status_2(dsinga: Dsinga) -> None:
    refused = dsinga("data", "import", "minst", "a", "b")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "did you mean 'mnist'" in refused.stderr


def test_a_users_file_registers_an_importer(dsinga: Dsinga, folder: Path) -> None:
    (folder / "own.py").write_text(USER_FILE)
    imported = dsinga("data", "import", "powers", "own.py", "powers.zarr", "--import", "own.py")
    assert imported.returncode == 0, imported.stderr
    assert "1 records" in imported.stdout
    refused = dsinga("train", "job.conf", "--import", "mine.py")
    assert refused.returncode == 2
    assert refused.stderr == "dsinga: mine.py cannot be imported: No such file or directory\n"
