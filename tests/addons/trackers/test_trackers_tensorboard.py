"""The files for TensorBoard, read record by record with the checksums that TensorBoard checks."""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga.extensions import TensorBoard, create_extensions
from dsinga.job import loads
from dsinga.testing import SimulatedLoop
from tests.core.nn.test_nn_keras_names import X, Y, model
from tests.support.refusals import refused


def metrics_of(phase: str, step: int) -> dict[str, float]:
    return {"loss": 1 / step, "accuracy": step / 200} if phase == "val" else {"loss": 2 / step}


def masked(data: bytes) -> int:
    """Return the checksum of the TFRecord format: https://www.tensorflow.org/tutorials/load_data/tfrecord."""
    from tensorboardX.crc32c import crc32c  # with PyTorch, where that is installed: 190 MB

    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder: Path) -> Iterator[Any]:
    """Yield the events of all files of a folder, the oldest file first."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: int(path.name.rpartition("step")[2])):
        content, at = path.read_bytes(), 0
        while at < len(content):
            header = content[at : at + 8]
            (length,) = struct.unpack("<Q", header)
            data = content[at + 12 : at + 12 + length]
            assert struct.unpack("<I", content[at + 8 : at + 12])[0] == masked(header)
            assert struct.unpack("<I", content[at + 12 + length : at + 16 + length])[0] == masked(data)
            yield Event.FromString(data)
            at += 16 + length


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return {tag: {step: value}}, purged as TensorBoard does where a session starts."""
    found: dict[str, dict[int, float]] = {}
    for event in events(folder):
        if event.session_log.status == event.session_log.START:
            found = {tag: {s: v for s, v in values.items() if s < event.step} for tag, values in found.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                assert event.step not in found.setdefault(value.tag, {}), "written twice"
                found[value.tag][event.step] = value.simple_value
    return found


def assert_holds(folder: Path, loop: SimulatedLoop) -> None:
    for phase in ("train", "val"):
        rows = [row for row in loop.rows if row["phase"] == phase]
        found = scalars(folder / phase)
        names = {"loss", "learning_rate", "samples_per_second"} if phase == "train" else {"loss", "accuracy"}
        assert found.keys() == names
        for name in names & {"loss", "accuracy"}:
            expected = {row["step"]: float(np.float32(row[name])) for row in rows}
            assert {step: float(np.float32(value)) for step, value in found[name].items()} == expected


def test_the_rows_are_there_by_phase_in_the_workspace_unless_told_otherwise(tmp_path: Path) -> None:
    loop = SimulatedLoop([TensorBoard()], metrics_of, workspace=tmp_path).run()
    assert_holds(tmp_path / "tensorboard", loop)
    rates = scalars(tmp_path / "tensorboard" / "train")["learning_rate"]
    assert rates[5] == rates[200] == pytest.approx(0.01)
    refused(lambda: SimulatedLoop([TensorBoard()], metrics_of).run(), "TensorBoard", "give it folder")


@pytest.mark.parametrize("step", [7, 70, 112])
def test_a_resumed_run_takes_the_place_of_later_rows(tmp_path: Path, step: int) -> None:
    unbroken = SimulatedLoop([TensorBoard(tmp_path)], metrics_of).run()
    resumed = SimulatedLoop([TensorBoard(tmp_path)], metrics_of).run(unbroken.checkpoints[step])
    assert resumed.rows == unbroken.rows
    assert_holds(tmp_path, resumed)


def test_a_new_run_sets_the_files_of_an_earlier_one_aside(tmp_path: Path) -> None:
    first = SimulatedLoop([TensorBoard(tmp_path)], metrics_of).run()
    second = SimulatedLoop([TensorBoard(tmp_path)], lambda phase, step: {**metrics_of(phase, step), "loss": 0}).run()
    assert_holds(tmp_path, second)
    assert_holds(tmp_path / "old", first)


def test_histograms_of_params(tmp_path: Path) -> None:
    extension = TensorBoard(tmp_path, histogram_freq=30)
    assert extension.pauses
    SimulatedLoop([extension], metrics_of).run()
    found = {
        event.step: value.histo
        for event in events(tmp_path / "train")
        for value in event.summary.value
        if value.tag == "w" and value.HasField("histo")
    }
    assert list(found) == [30, 60, 90, 120, 150, 180]
    assert [(histo.num, histo.min, histo.max) for histo in found.values()] == [(3, step, step) for step in found]


def test_a_job_names_it(tmp_path: Path) -> None:
    job = loads(f'train_steps: 5 extension {{ type: kTensorBoard folder: "{tmp_path}/runs" histogram_freq: 2 }}')
    extension = create_extensions(job)[-1]
    assert isinstance(extension, TensorBoard)
    assert extension.trigger.next_step(0) == 2
    SimulatedLoop([extension], metrics_of).run()
    assert (tmp_path / "runs" / "train").is_dir()


def test_without_its_package_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    job = loads("train_steps: 5\nextension { type: kTensorBoard }", "own.conf")
    message = (
        r"^own.conf:2: extension kTensorBoard: TensorBoard needs tensorboardX: pip install 'dsinga\[tensorboard\]'$"
    )
    refused(lambda: create_extensions(job), message)


def test_tensorboard_takes_its_folder_by_the_name_of_keras(tmp_path):
    pytest.importorskip("tensorboardX")
    model().fit(X, Y, callbacks=[TensorBoard(log_dir=tmp_path / "logs")], progress=False)
    assert list((tmp_path / "logs" / "train").iterdir())


def test_a_folder_that_is_given_twice_is_refused() -> None:
    refused(lambda: TensorBoard("a", log_dir="b"), "folder and log_dir are one argument")
