"""The work of reading a job is bounded, whatever the file contains."""

import os
import resource

import pytest

from dsinga.job import JobError, load, loads
from dsinga.job.reader import LARGEST_BYTES

SIZE = 250_001  # repeated parts of a text


@pytest.mark.parametrize(
    ("text", "repeated", "expected"),
    [
        ("%s", "{", "expected a field name, found '{'"),
        ("%s", "\0", "has no meaning here"),
        ("train_steps: %s", "1", "(250001 characters) is too long; numbers have at most 400"),
        ("train_steps: -0x%s", "f", "numbers have at most 400"),
        ("updater { delta: 0.%s", "1", "numbers have at most 400"),
        ("%s", "a", "(250001 characters) is too long; names have at most 200"),
        ("name: %s", "a", "names have at most 200"),
        ("name: '%s'", "a", "(250003 characters) is too long; strings have at most 4096"),
        ("name: '%s'", "\\a", "strings have at most 4096"),
        ("%s", "layer {", "job.conf:1:707: blocks are nested more than 100 deep"),
        ("%s", "[x]: [{ y: [", "expected a value, found '['"),
        ("%s", "[x] { y: [{ z: [", "expected a value, found '['"),
        ("%s", "[a] <", "blocks are nested more than 100 deep"),
        ("%s", "gpu: 1 ", "a job has at most 100,000 values"),
    ],
)
def test_a_long_text_is_refused_in_a_short_message(text, repeated, expected, monkeypatch):
    monkeypatch.setattr("dsinga.job.textformat.MOST_VALUES", 100_000)  # which takes a tenth of the time
    with pytest.raises(JobError) as caught:
        loads(text % (repeated * SIZE), "job.conf")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_large_file_is_refused_by_its_size_before_it_is_read(tmp_path):
    path = tmp_path / "large.conf"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 3 << 30)  # a hole: takes no room on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(JobError, match=r"large\.conf': it has 3,221,225,472 bytes, and such a file at most"):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LARGEST_BYTES >> 10


def test_pipes_and_devices_are_no_job_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device")):
        with pytest.raises(JobError, match=f"cannot read the job file .*: it is {kind}, not a file"):
            load(path)
    with pytest.raises(JobError, match=r"cannot read the job file .*: Is a directory"):
        load(tmp_path)


def test_lines_may_end_as_on_any_system(tmp_path):
    path = tmp_path / "job.conf"
    path.write_bytes(b"\xef\xbb\xbf# a comment\r\ntrain_steps: 5\rseed: x")
    with pytest.raises(JobError, match=r"job\.conf:3: "):
        load(path)
    path.write_bytes(b"\xef\xbb\xbf# a comment\r\ntrain_steps: 5\rseed: 6")
    assert (load(path).train_steps, load(path).seed) == (5, 6)
