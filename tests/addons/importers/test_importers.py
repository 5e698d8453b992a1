"""Every importer writes complete stores with exactly the records of the source, and none if it does not finish."""

import gzip
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dsinga.base.errors import UserError
from dsinga.base.registry import entries, is_user_code
from dsinga.data import RecordStore, import_records
from tests.support.command_line import Dsinga
from tests.support.data_sources import SOURCES, Source
from tests.support.refusals import refused


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    folder = tmp_path / "source"
    folder.mkdir()
    return SOURCES[request.param](folder)


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "imports" / "out"


def all_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_kind_is_tested() -> None:
    tested = set(SOURCES) | {"textfile", "lmdb", "conll", "text", "sentences", "pairs", "contexts", "movielens"}
    assert {kind for kind, importer in entries("importer").items() if not is_user_code(importer)} <= tested


class TestImporter:
    def test_stores_hold_the_records_of_the_source(self, source: Source, destination: Path) -> None:
        """The progress that is reported increases to the total."""
        calls: list[tuple[int, int]] = []
        progress = lambda *arguments: calls.append(arguments)  # noqa: E731
        counts = import_records(source.kind, source.path, destination, progress, **source.options)
        done = [amount for amount, _ in calls]
        assert done == sorted(done)
        assert {total for _, total in calls} == {done[-1]}
        assert set(counts) == {str(destination / name) for name in source.expected}
        for name, (data, labels) in source.expected.items():
            store = RecordStore(destination / name)
            records_read, labels_read = store.read(range(len(store)))
            assert counts[store.location] == len(store) == len(data)
            assert store.dtype == data.dtype
            np.testing.assert_array_equal(records_read, data)
            if labels is None:
                assert labels_read is None
                assert not store.has_labels
            else:
                np.testing.assert_array_equal(labels_read, labels)
                assert labels_read.dtype == (np.float32 if labels.dtype == np.float32 else np.int64)

    def test_an_interrupted_import_leaves_what_was_there(self, source: Source, destination: Path) -> None:
        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_records(source.kind, source.path, destination, interrupt, **source.options)
        assert not all_files(destination.parent)
        import_records(source.kind, source.path, destination, **source.options)
        files = all_files(destination.parent)
        with pytest.raises(KeyboardInterrupt):
            import_records(source.kind, source.path, destination, interrupt, overwrite=True, **source.options)
        assert all_files(destination.parent) == files
        import_records(source.kind, source.path, destination, overwrite=True, **source.options)
        assert all_files(destination.parent) == files


@pytest.mark.parametrize("name", ["cifar10", "csv"])
def test_stores_are_written_to_urls(name: str, tmp_path: Path) -> None:
    source, root = SOURCES[name](tmp_path), f"memory:/{tmp_path}"
    import_records(source.kind, source.path, root, **source.options)
    for part, (data, _) in source.expected.items():
        store = RecordStore(f"{root}/{part}".rstrip("/"))
        np.testing.assert_array_equal(store.read([len(data) - 1, 0])[0], data[[-1, 0]])


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    source = SOURCES["npz"](tmp_path)
    refused(lambda: import_records("npz", source.path, tmp_path / "out", colour=True), "'colour'", "has no option")


def image_classes(folder: Path, size: tuple[int, int] = (6, 5)) -> None:
    for label, name in enumerate(("cat", "ant", "bee")):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((*size, 3), 100 * label + number, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


class TestImageFolder:
    def test_subfolders_are_classes_and_are_shuffled(self, tmp_path: Path) -> None:
        image_classes(tmp_path / "images")
        import_records("imagefolder", tmp_path / "images", tmp_path / "out.zarr")
        store = RecordStore(tmp_path / "out.zarr")
        data, labels = store.read(range(60))
        assert store.classes == ("ant", "bee", "cat")
        assert np.bincount(labels).tolist() == [20, 20, 20]
        colour = np.array([100, 200, 0])  # of ant, bee and cat, which were drawn as labels 1, 2, 0
        assert (data[:, 0, 0, 0] - colour[labels] < 20).all()
        assert len(set(labels[:12])) == 3

    def test_images_are_resized_when_asked(self, tmp_path: Path) -> None:
        image_classes(tmp_path / "images")
        Image.new("L", (40, 30), 77).save(tmp_path / "images" / "cat" / "grey.jpg")
        with pytest.raises(UserError, match=r"uint8 of shape \(3, 30, 40\), but the first record|\(3, 6, 5\)"):
            import_records("imagefolder", tmp_path / "images", tmp_path / "out.zarr")
        import_records("imagefolder", tmp_path / "images", tmp_path / "out.zarr", size=(8, 9))
        assert RecordStore(tmp_path / "out.zarr").shape == (3, 8, 9)


class TestMissingExtra:
    @pytest.mark.parametrize(("module", "source_name"), [("PIL", "imagefolder"), ("scipy.io", "mat")])
    def test_the_error_names_the_package_to_install(
        self, module: str, source_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = SOURCES[source_name](tmp_path)
        monkeypatch.setitem(__import__("sys").modules, module, None)
        refused(lambda: import_records(source.kind, source.path, tmp_path / "out"), "pip install", "needs")


# The command data import: what it prints, and a user's importer.
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


def test_a_users_file_registers_an_importer(dsinga: Dsinga, folder: Path) -> None:
    (folder / "own.py").write_text(USER_FILE)
    imported = dsinga("data", "import", "powers", "own.py", "powers.zarr", "--import", "own.py")
    assert imported.returncode == 0, imported.stderr
    assert "1 records" in imported.stdout
    refused = dsinga("train", "job.conf", "--import", "mine.py")
    assert refused.returncode == 2
    assert refused.stderr == "dsinga: mine.py cannot be imported: No such file or directory\n"


# The published files of MNIST and CIFAR-10, through the importers and the reader; see the marker ``data``.
@pytest.fixture(scope="module")
def stores(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    for kind in ("mnist", "cifar10"):
        import_records(kind, real_data / kind, folder / kind)
    return folder


@pytest.mark.data
@pytest.mark.parametrize(("name", "prefix", "count"), [("train", "train", 60000), ("test", "t10k", 10000)])
def test_mnist_has_the_published_bytes(stores: Path, real_data: Path, name: str, prefix: str, count: int) -> None:
    store = RecordStore(stores / "mnist" / f"{name}_data.zarr")
    data, labels = store.read(range(count))
    assert (len(store), store.shape, store.dtype) == (count, (28, 28), np.uint8)
    assert data.tobytes() == gzip.decompress((real_data / f"mnist/{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
    raw = gzip.decompress((real_data / f"mnist/{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
    np.testing.assert_array_equal(labels, np.frombuffer(raw, np.uint8))


@pytest.mark.data
def test_cifar10_has_the_published_bytes(stores: Path, real_data: Path) -> None:
    store = RecordStore(stores / "cifar10" / "train_data.zarr")
    files = sorted((real_data / "cifar10").glob("data_batch_*.bin.xz"))
    assert len(store) == 10000 * len(files)
    assert store.classes[:3] == ("airplane", "automobile", "bird")
    for number, file in enumerate(files):
        raw = np.frombuffer(lzma.decompress(file.read_bytes()), np.uint8).reshape(-1, 3073)
        data, labels = store.read(range(10000 * number, 10000 * (number + 1)))
        np.testing.assert_array_equal(labels, raw[:, 0])
        assert data.tobytes() == raw[:, 1:].tobytes()
