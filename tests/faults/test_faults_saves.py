"""What dsinga writes over an older one is the old or the new, whenever the process is killed."""

import pytest

from tests.support.programs import ROOT, python

SAVED = ["model", "weights", "callback", "callback's weights", "weights for Hugging Face", "estimator", "checkpoint"]
STORED = ["store", "import", "predictions"]
OTHERS = ["numbers as text", "rates", "text", "example"]
EXPORTED = ["ONNX files", "Triton's model"]


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "arguments", [["--count=32"], *(["--every", "--only", *names] for names in (SAVED, STORED, OTHERS, EXPORTED))]
)
def test_killed_before_every_operation_on_files_and_at_random_moments(
    arguments: list[str], in_memory: dict[str, str]
) -> None:
    """tools/faults/saves.py compares what is read afterwards, and what the next save leaves in the folder."""
    ended = python("-m", "tools.faults.saves", *arguments, environment=in_memory, cwd=ROOT, timeout=290)
    assert ended.stdout.endswith("\n0 wrong\n")
