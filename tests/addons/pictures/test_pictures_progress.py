"""The progress of training in a notebook: curves below the line."""

import nbformat
import pytest
from nbclient import NotebookClient

NOW = {"step": 100, "samples_per_second": 3200.4, "loss": 0.25, "accuracy": 0.9375}
TRAIN = {"step": 100, "phase": "train", "time": 2.0, "loss": 0.26, "accuracy": 0.93}
TEST = {"step": 100, "phase": "test", "time": 2.5, "loss": 0.3, "accuracy": 0.92}

CELL = f"""
from dsinga.monitor import show_progress
with show_progress(400, "net") as progress:
    progress.update({NOW})
    progress.show_row({TRAIN})
    progress.show_row({TEST})
"""


RESUMED = f"""
with show_progress(400, "net", earlier=[{TEST}]) as progress:
    progress.remark("training stopped")
"""


@pytest.mark.ci
def test_a_notebook_gets_the_picture():
    cells = [nbformat.v4.new_code_cell(text) for text in (CELL, RESUMED)]
    NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=60, kernel_name="python3").execute()
    (output,) = cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"] == "net: step 100/400  loss 0.25  accuracy 0.9375  3,200 samples/s"
    assert "train 0.93" in output.data["text/html"]
    assert "test 0.92" in output.data["text/html"]
    (output,) = cells[1].outputs
    assert output.data["text/plain"] == "net: step 100/400\ntraining stopped"
    assert "\ntraining stopped</div>" in output.data["text/html"]
    assert "test 0.92" in output.data["text/html"]
    assert "train " not in output.data["text/html"]
