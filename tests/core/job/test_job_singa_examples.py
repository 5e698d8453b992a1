"""The job files that came with SINGA 0.3, in the folder $DSINGA_SINGA_EXAMPLES; we may not ship them."""

import os
from pathlib import Path

import pytest

from dsinga.job import JobError, Phase, check, load, loads, to_text
from tests.support.refusals import refused

FOLDER = os.environ.get("DSINGA_SINGA_EXAMPLES", "")
FILES = sorted(Path(FOLDER).glob("**/*.conf")) if FOLDER else []
OF_AN_OLDER_SCHEMA = "mnist/rbm_job.conf"  # of version 0.1; SINGA 0.3 refuses it as well
WITHOUT_TRAINING = "char-rnn/sample.conf"

pytestmark = pytest.mark.skipif(not FILES, reason="DSINGA_SINGA_EXAMPLES is not a folder with SINGA's examples")


def is_(path: Path, name: str) -> bool:
    return path.as_posix().endswith(name)


@pytest.mark.parametrize("path", FILES or [Path("none")], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_job_of_singa_loads_and_passes_the_checks(path):
    if is_(path, OF_AN_OLDER_SCHEMA):
        refused(lambda: load(path), "'model'", "has no field", error=JobError)
        return
    job = load(path)
    check(job, [Phase.kTest] if is_(path, WITHOUT_TRAINING) else None)
    assert len(job.neuralnet.layer) > 3
    assert loads(to_text(job)) == job
