"""The messages of jobs that add-ons bring: found by name, imported when a job has them."""

import pytest
import yaml

from dsinga.job import ClusterConf, Job, JobError, StoreConf, loads
from dsinga.job.message import added_fields, added_message
from tests.support.executed_pages import ROOT
from tests.support.programs import python
from tests.support.refusals import refused_with

ADDED = [added_message(cls, name) for cls in (ClusterConf, Job, StoreConf) for name in added_fields(cls)]
JOB = """train_steps: 1
cluster { nworkers_per_group: 2 }
neuralnet { layer { name: "data" type: kRecordInput store_conf { path: "a" batchsize: 8 } } }
"""


def test_a_job_without_them_imports_none(tmp_path):
    (tmp_path / "job.conf").write_text(JOB)
    program = f"""
import sys
from dsinga.job import load, to_text
to_text(load({str(tmp_path / "job.conf")!r}))
print(*{{{", ".join(repr(cls.__module__) for cls in ADDED)}}} & sys.modules.keys())
"""
    done = python("-c", program)
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
    refused_with(lambda: loads(text, "job.conf"), expected, error=JobError)


HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("dsinga.rl", "dsinga.addons.")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from dsinga.base.errors import UserError
from dsinga.job import check, loads
for text in sys.argv[1:]:
    try:
        check(loads(text, "job.conf"))
    except UserError as error:
        print(error)
"""
GROUPS = "nworker_groups: 2 nserver_groups: 2 sync_method: kMean"


def test_a_message_of_a_hidden_addon_is_told_with_its_place_and_what_installs_it():
    texts = {
        "train_steps: 1\nreinforcement { }": "job.conf:2: message 'Job.reinforcement' belongs to the add-on dsinga.rl",
        f"cluster {{ {GROUPS}\n mean_conf {{ }} }}": "job.conf:2: message 'ClusterConf.mean_conf' belongs to",
        f"train_steps: 1 cluster {{\n{GROUPS} }}": "job.conf:2: message 'ClusterConf.mean_conf' belongs to",
        JOB.replace("batchsize", "\nwindows { } batchsize"): "job.conf:4: layer 'data': message 'StoreConf.windows' ",
        JOB.replace("batchsize", "\ntext { } batchsize"): "job.conf:4: layer 'data': message 'StoreConf.text' ",
    }
    done = python("-c", HIDDEN, *texts)
    lines = done.stdout.splitlines()
    assert len(lines) == len(texts)
    for line, expected in zip(lines, texts.values(), strict=True):
        assert line.startswith(expected)
        assert line.endswith("which is not installed; install all of dsinga by 'pip install --force-reinstall dsinga'")


# Settings in Dask's configuration that the core, the cluster and the add-ons read.
def test_every_setting_that_the_package_reads_is_one_of_them():
    read = {
        line.split('read_setting("')[1].split('"')[0]
        for file in (ROOT / "dsinga").rglob("*.py")
        for line in file.read_text().splitlines()
        if 'read_setting("' in line
    }
    defaults = yaml.safe_load((ROOT / "dsinga" / "base" / "dsinga.yaml").read_text())
    assert read == defaults["dsinga"].keys()
    others = [file for file in (ROOT / "dsinga").rglob("*.py") if 'config.get("dsinga.' in file.read_text()]
    assert not others, "read_setting checks what it reads"
