"""The cores that a process may use."""

import sys

import pytest

from dsinga.base.cores import quota_cores


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/pod/box", {"pod/box/cpu.max": "150000 100000"}, 2),
        ("0::/pod/box", {"pod/box/cpu.max": "max 100000", "pod/cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, sys.maxsize),
        ("0::/pod/box", {}, sys.maxsize),
        ("", {}, sys.maxsize),
        ("4:cpu,cpuacct:/box\n0::/", {"cpu,cpuacct/box/cpu.cfs": "250000 100000"}, 3),
        ("4:cpuacct,cpu:/host/path", {"cpu/cpu.cfs": "200000 100000"}, 2),  # a container with a mount of its own
        ("4:cpu:/box\n3:memory:/box", {"cpu/box/cpu.cfs": "-1 100000", "memory/box/cpu.cfs": "1 1"}, sys.maxsize),
    ],
)
def test_the_cores_of_a_container_follow_its_quota(tmp_path, own, files, cores):
    (tmp_path / "own").write_text(own)
    for name, numbers in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{numbers}\n")
        for end, number in zip(("_quota_us", "_period_us"), numbers.split(), strict=True):
            file.with_name(f"{file.name}{end}").write_text(number)
    assert quota_cores(tmp_path / "own", tmp_path) == cores
