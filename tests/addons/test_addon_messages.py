"""The messages of jobs that add-ons bring: found by name, imported when a job has them, with bounded numbers."""

import math
import subprocess
import sys

import pytest

from dsinga.job import ClusterConf, Job, JobError, StoreConf, loads
from dsinga.job.message import added_fields, added_message
from tests.core.job.test_job_limits import WITHOUT_EFFECT, accepting, numbers

ADDED = [added_message(cls, name) for cls in (ClusterConf, Job, StoreConf) for name in added_fields(cls)]
NEGATIVE = {
    "ReinforcementConf.stop_return",  # returns may be negative
    "WindowDimConf.size",  # -1: all points
    "WindowDimConf.overlap", "WindowDimConf.lead",  # points between windows, targets before their inputs
    "WindowFillConf.value",
}  # fmt: skip
JOB = """train_steps: 1
cluster { nworkers_per_group: 2 }
neuralnet { layer { name: "data" type: kRecordInput store_conf { path: "a" batchsize: 8 } } }
"""


def test_numbers_are_bounded():
    fields = [field for cls in ADDED for field in numbers(cls)]
    accepted = {name for name in accepting(-1, fields=fields) if name.partition(".")[0] not in of_core()}
    assert accepted == NEGATIVE
    for value in (math.nan, 1e39):
        assert not {name for name in accepting(value, fields=fields) if name.partition(".")[0] not in of_core()}


def of_core() -> set[str]:
    return {cls.__name__ for cls, *_ in numbers()} | {name.partition(".")[0] for name in WITHOUT_EFFECT}


def test_a_job_without_them_imports_none(tmp_path):
    (tmp_path / "job.conf").write_text(JOB)
    program = f"""
import sys
from dsinga.job import load, to_text
to_text(load({str(tmp_path / "job.conf")!r}))
print(*{{{", ".join(repr(cls.__module__) for cls in ADDED)}}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reinforcment { }", "job.conf:1: Job has no field 'reinforcment'; did you mean 'reinforcement'?"),
        ("reinforcement { enviroment: 3 }", "ReinforcementConf has no field 'enviroment'; did you mean 'environment'?"),
        ("rollout_steps: 3", "job.conf:1: Job has no field 'rollout_steps'; it belongs in reinforcement"),
        ("windows { }", "job.conf:1: Job has no field 'windows'"),
    ],
)
def test_a_wrong_name_is_told_with_its_place(text, expected):
    with pytest.raises(JobError) as caught:
        loads(text, "job.conf")
    assert expected in str(caught.value)
