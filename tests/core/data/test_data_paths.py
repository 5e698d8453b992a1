"""Looking up the paths of a job, opening SINGA's formats, and reading mean files."""

from pathlib import Path

import fsspec
import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.data import RecordStore, open_store, read_mean, resolve, write_store
from tests.support.refusals import refused

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
        refused(lambda: resolve("s3:/bucket/x.zarr", ["root"]), "did you mean the URL s3://bucket/x.zarr")
        refused(lambda: resolve("x.zarr", [str(tmp_path / "root")]), r"^x.zarr was not found; looked for")
        refused(lambda: resolve("x.zarr"), rf"^{tmp_path}/working/x.zarr was not found; make a store with: .*$")

    def test_the_message_lists_the_arrays_of_a_group(self, tmp_path: Path) -> None:
        for place in (str(tmp_path / "x.zarr"), "memory://resolve-group/x.zarr"):
            write_store(place, [(ONES, None)])
            with pytest.raises(UserError, match=rf"^{place} has no array 'date'; did you mean 'data'\?$"):
                resolve(f"{place}/date")
            with pytest.raises(UserError, match=rf"^{place} has no array 'y'; its arrays are data$"):
                resolve(f"{place}/y")
        refused(lambda: resolve(tmp_path / "x.zarr" / "data" / "y"), "was not found")


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
        refused(lambda: open_store(tmp_path / "x", backend), message)

    def test_a_kvfile_at_a_url(self) -> None:
        fsspec.filesystem("memory").pipe_file("/singa/x.bin", b"x")
        refused(lambda: open_store("memory://singa/x.bin", "kvfile"), "bin: a kvfile cannot be", "copy it to")
        write_store("memory://singa/x.zarr", [(ONES, None)])
        assert len(open_store("memory://singa/x.zarr", "kvfile")) == 4


class TestMean:
    MEAN = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)

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
        (tmp_path / "m3.npy").write_bytes(b"nonsense")
        for name, message in {
            "m.zarr": "has more than one record",
            "m3.npy": "cannot be read as a numpy file",
            "m4.bin": "was not found",
        }.items():
            with pytest.raises(UserError, match=f"{name}.* {message}"):
                read_mean(tmp_path / name)


def test_a_store_opens_by_its_own_path(tmp_path: Path) -> None:
    write_store(tmp_path / "plain", [(ONES, None)])
    assert isinstance(open_store(tmp_path / "plain"), RecordStore)
    assert len(open_store(tmp_path / "plain", backend="kvfile")) == 4  # as in a job whose data were moved to zarr
