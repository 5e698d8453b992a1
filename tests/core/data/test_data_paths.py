"""Looking up the paths of a job, opening SINGA's formats, and reading mean files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import lmdb
import numpy as np
import pytest

from dsinga.addons.importers.kvfile import RecordProto
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, open_store, read_mean, resolve, write_store
from dsinga.reading.sampler import Sampler
from tests.support.data_sources import SOURCES, pair, pixels

ONES = np.ones((4, 2), np.float32)


class TestResolve:
    @pytest.fixture(autouse=True)
    def working_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "working").mkdir()
        monkeypatch.chdir(tmp_path / "working")
        return tmp_path / "working"

    def test_the_working_directory_comes_first_then_the_roots(self, tmp_path: Path) -> None:
        roots = [str(tmp_path / "beside"), str(tmp_path / "root")]
        for folder in ("root", "beside", "working"):
            (tmp_path / folder / "a").mkdir(parents=True)
            (tmp_path / folder / "a" / "x.bin").write_bytes(b"")
            assert resolve("a/x.bin", roots) == str(tmp_path / folder / "a" / "x.bin")

    def test_an_imported_store_is_found_in_place_of_its_source(self, tmp_path: Path) -> None:
        (tmp_path / "root" / "train_data.zarr").mkdir(parents=True)
        assert resolve("train_data.bin", [str(tmp_path / "root")]) == str(tmp_path / "root" / "train_data.zarr")
        (tmp_path / "root" / "train_data.bin").write_bytes(b"")
        assert resolve("train_data.bin", [str(tmp_path / "root")]) == str(tmp_path / "root" / "train_data.bin")

    def test_absolute_paths_and_urls_need_no_root(self, tmp_path: Path) -> None:
        write_store("memory://resolve/x.zarr", [(ONES, None)])
        write_store(tmp_path / "x.zarr", [(ONES, None)])
        assert resolve("memory://resolve/x.bin") == "memory://resolve/x.zarr"
        assert resolve(f"file://{tmp_path}/x.zarr") == resolve(tmp_path / "x.zarr") == str(tmp_path / "x.zarr")

    def test_a_root_may_be_a_url(self) -> None:
        write_store("memory://roots/a/x.zarr", [(ONES, None)])
        assert resolve("a/x.bin", ["memory://roots"]) == "memory://roots/a/x.zarr"

    def test_the_message_lists_the_paths(self, tmp_path: Path) -> None:
        with pytest.raises(UserError) as caught:
            resolve("a/x.bin", [str(tmp_path / "root"), str(tmp_path / "root")])
        lines = str(caught.value).splitlines()
        assert lines[0] == "a/x.bin was not found (nor x.zarr beside it); looked for"
        assert lines[1:3] == [f"  {tmp_path}/working/a/x.bin", f"  {tmp_path}/root/a/x.bin"]
        assert "data_root=FOLDER" in lines[3]
        with pytest.raises(UserError, match=r"^x.zarr was not found; looked for"):
            resolve("x.zarr", [str(tmp_path / "root")])
        with pytest.raises(UserError, match=rf"^{tmp_path}/working/x.zarr was not found; make a store with: .*$"):
            resolve("x.zarr")

    def test_the_message_lists_the_arrays_of_a_group(self, tmp_path: Path) -> None:
        for place in (str(tmp_path / "x.zarr"), "memory://resolve-group/x.zarr"):
            write_store(place, [(ONES, None)])
            with pytest.raises(UserError, match=rf"^{place} has no array 'date'; did you mean 'data'\?$"):
                resolve(f"{place}/date")
            with pytest.raises(UserError, match=rf"^{place} has no array 'y'; its arrays are data$"):
                resolve(f"{place}/y")
        with pytest.raises(UserError, match="was not found"):
            resolve(tmp_path / "x.zarr" / "data" / "y")


class TestSingaFormats:
    @pytest.mark.parametrize(
        ("name", "backend"),
        [
            *(("kvfile", "kvfile"), ("kvfile", None), ("csv", "textfile"), ("csv", "")),
            *(("lmdb_record", "lmdb"), ("lmdb_record", None), ("imagefolder", "imagefolder")),
        ],
    )
    def test_they_are_imported_once_into_a_store_beside_them(
        self, name: str, backend: str | None, tmp_path: Path
    ) -> None:
        (tmp_path / name).mkdir()
        source = SOURCES[name](tmp_path / name)
        store = open_store(source.path, backend)
        data, labels = source.expected[""]
        records, labels_read = store.read(range(len(data)))
        np.testing.assert_array_equal(records, data)
        np.testing.assert_array_equal(labels_read, labels)
        assert store.location == str(source.path.with_suffix(".zarr"))
        written = os.stat(Path(store.location) / "zarr.json").st_mtime_ns
        assert open_store(source.path, backend).digest == store.digest
        assert os.stat(Path(store.location) / "zarr.json").st_mtime_ns == written
        if source.path.is_file():
            source.path.unlink()
            assert open_store(source.path, backend).location == store.location

    def test_a_newer_source_is_imported_again(self, tmp_path: Path) -> None:
        path = tmp_path / "x.bin"
        for value in (1, 2):
            path.write_bytes(pair(b"", pixels(np.full((2, 2), value, np.uint8), 0)))
            metadata = (tmp_path / "x.zarr" / "zarr.json") if value == 2 else None
            if metadata:  # newer by a nanosecond, whatever the resolution of the clock
                os.utime(path, ns=(metadata.stat().st_mtime_ns + 1,) * 2)
            assert (open_store(path).read([0])[0] == value).all()

    def test_an_interrupted_store_beside_it_is_replaced(self, tmp_path: Path) -> None:
        source = SOURCES["kvfile"](tmp_path)
        store = Path(open_store(source.path).location)
        metadata = (store / "zarr.json").read_text()
        (store / "zarr.json").write_text(metadata.replace('"complete": true', '"complete": false'))
        assert len(open_store(source.path)) == 900

    def test_a_folder_beside_it_that_is_not_a_store_is_kept(self, tmp_path: Path) -> None:
        source = SOURCES["kvfile"](tmp_path)
        (tmp_path / "train_data.zarr").mkdir()
        (tmp_path / "train_data.zarr" / "precious").write_text("x")
        with pytest.raises(UserError, match="train_data.zarr exists and is not a record store"):
            open_store(source.path)
        assert (tmp_path / "train_data.zarr" / "precious").exists()

    def test_lines_without_labels_are_another_store(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("1;2;3\n4;5;6\n")
        labelled = open_store(tmp_path / "x.csv", "textfile", separator=";")
        plain = open_store(tmp_path / "x.csv", "textfile", separator=";", has_label=False)
        assert (labelled.shape, plain.shape) == ((2,), (3,))
        assert (labelled.has_labels, plain.has_labels) == (True, False)
        assert plain.read([1])[0].tolist() == [[4, 5, 6]]

    def test_images_are_resized_to_the_shape_of_the_job(self, tmp_path: Path) -> None:
        source = SOURCES["imagefolder"](tmp_path)
        assert open_store(source.path, "imagefolder", shape=(3, 10, 12)).shape == (3, 10, 12)

    def test_encoded_pixels_are_decoded(self, tmp_path: Path) -> None:
        (tmp_path / "images").mkdir()
        images = SOURCES["imagefolder"](tmp_path / "images")
        encoded = (tmp_path / "images" / "image 3.png").read_bytes()
        (tmp_path / "x.bin").write_bytes(pair(b"", RecordProto(label=4, pixel=encoded).SerializeToString()))
        data, labels = open_store(tmp_path / "x.bin", encoded=True).read([0])
        np.testing.assert_array_equal(data, images.expected[""][0][[3]])
        assert labels.tolist() == [4]

    def test_processes_that_import_concurrently_use_one_store(self, tmp_path: Path) -> None:
        source = SOURCES["kvfile"](tmp_path)
        script = (
            "import sys; from dsinga.data import open_store; print('ready', flush=True); sys.stdin.readline(); "
            "store = open_store(sys.argv[1]); print(store.digest, int(store.read(range(len(store)))[0].sum()))"
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(source.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = {process.communicate(timeout=60)[0] for process in processes}
        assert len(outputs) == 1
        assert outputs.pop().split()[1] == str(source.expected[""][0].sum(dtype=np.int64))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["train_data.bin", "train_data.zarr"]

    def test_rows_wrap_as_in_singa(self, tmp_path: Path) -> None:
        # The example of SINGA's own test of its CSV layer: labels 12, 2 in the first batch of two, then 1 and again 12.
        (tmp_path / "x.csv").write_text("12,3.2,1,14.1\n2,0.2,0,1.1\n1,2.2,1,4.1\n")
        store = open_store(tmp_path / "x.csv")
        sampler = Sampler(len(store), 2, 0, store.chunk, shuffle=False)
        data, labels = store.read(sampler.rows(0))
        np.testing.assert_array_equal(data, np.array([[3.2, 1, 14.1], [0.2, 0, 1.1]], np.float32))
        assert labels.tolist() == [12, 2]
        assert store.read(sampler.rows(1))[1].tolist() == [1, 12]


class TestRefused:
    @pytest.mark.parametrize(
        ("backend", "message"),
        [
            ("kvfiel", "unknown backend 'kvfiel'; did you mean 'kvfile'"),
            ("hdfsfile", "backend 'hdfsfile' is not supported; copy the file to this machine"),
            (None, "its name does not show its format; set backend to one of kvfile, textfile"),
            ("zarr", "is no zarr array or group that can be opened"),
        ],
    )
    def test_backends(self, tmp_path: Path, backend: str | None, message: str) -> None:
        (tmp_path / "x").write_text("x")
        with pytest.raises(UserError, match=message):
            open_store(tmp_path / "x", backend)

    def test_a_kvfile_at_a_url(self) -> None:
        fsspec.filesystem("memory").pipe_file("/singa/x.bin", b"x")
        with pytest.raises(
            UserError, match="memory://singa/x.bin: a kvfile cannot be read from a URL; copy it to this machine"
        ):
            open_store("memory://singa/x.bin", "kvfile")
        write_store("memory://singa/x.zarr", [(ONES, None)])
        assert len(open_store("memory://singa/x.zarr", "kvfile")) == 4

    def test_an_empty_database(self, tmp_path: Path) -> None:
        with lmdb.open(str(tmp_path / "db"), map_size=1 << 20):
            pass
        with pytest.raises(UserError, match="there are no records to write"):
            open_store(tmp_path / "db", "lmdb")


class TestMean:
    MEAN = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)

    def test_singas_kvfile(self, tmp_path: Path) -> None:
        record = RecordProto(shape=[3, 4, 5], data=self.MEAN.ravel()).SerializeToString()
        (tmp_path / "image_mean.bin").write_bytes(pair(b"mean", record))
        np.testing.assert_array_equal(read_mean("image_mean.bin", [str(tmp_path)]), self.MEAN)
        assert not (tmp_path / "image_mean.zarr").exists()

    def test_a_store_beside_it(self, tmp_path: Path) -> None:
        write_store(tmp_path / "image_mean.zarr", [(self.MEAN[None], None)])
        for name in ("image_mean.bin", "image_mean.zarr"):
            np.testing.assert_array_equal(read_mean(name, [str(tmp_path)]), self.MEAN)

    def test_a_numpy_file(self, tmp_path: Path) -> None:
        np.save(tmp_path / "std.npy", self.MEAN.astype(np.float64))
        mean = read_mean(tmp_path / "std.npy")
        assert mean.dtype == np.float32
        np.testing.assert_array_equal(mean, self.MEAN)

    def test_more_than_one_record_is_refused(self, tmp_path: Path) -> None:
        write_store(tmp_path / "m.zarr", [(ONES, None)])
        value = RecordProto(data=[1.0]).SerializeToString()
        (tmp_path / "m2.bin").write_bytes(pair(b"", value) * 3)
        (tmp_path / "m5.bin").write_bytes(b"")
        (tmp_path / "m3.npy").write_bytes(b"nonsense")
        for name, message in {
            "m.zarr": "has more than one record",
            "m2.bin": "has more than one record",
            "m3.npy": "cannot be read as a numpy file",
            "m4.bin": "was not found",
            "m5.bin": "has no record",
        }.items():
            with pytest.raises(UserError, match=f"{name}.* {message}"):
                read_mean(tmp_path / name)


def test_a_store_opens_by_its_own_path(tmp_path: Path) -> None:
    write_store(tmp_path / "plain", [(ONES, None)])
    assert isinstance(open_store(tmp_path / "plain"), RecordStore)
    assert len(open_store(tmp_path / "plain", backend="kvfile")) == 4  # as in a job whose data were moved to zarr
