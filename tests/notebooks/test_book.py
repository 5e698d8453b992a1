"""The notebooks of the Book run without downloaded data, on a sample that they make."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_cells import ROOT, execute, result, value

pytestmark = pytest.mark.ci
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks" / "book").glob("*.ipynb"))
Run = Callable[[str], Any]
# Fewer epochs than in the repository where a chapter takes long.
CHANGED = {"3-images": {"net": lambda source: source.replace('50, "epochs": 6', '50, "epochs": 2')}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs a chapter, each once, and returns its notebook."""
    books: dict[str, Any] = {}

    def run(name: str) -> Any:
        if name not in books:
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("DSINGA_DATA", raising=False)
                books[name] = execute(f"book/{name}", tmp_path_factory.mktemp(name), changed=CHANGED.get(name))
        return books[name]

    return run


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_chapter_runs_without_warnings(name: str, run: Run) -> None:
    outputs: list[Any] = [output for cell in run(name).cells for output in cell.get("outputs", ())]
    assert not [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    pictures = [output for output in outputs if {"image/png", "text/html"} & set(output.get("data", ()))]
    assert len(pictures) >= 3  # the net, its training, its result


def test_the_chapters_are_numbered_in_the_order_of_the_book() -> None:
    assert [int(name.split("-")[0]) for name in CHAPTERS] == sorted({int(name.split("-")[0]) for name in CHAPTERS})


def test_the_line_is_that_of_least_squares(run: Run) -> None:
    lines = value(run("1-line"), "same")
    assert [*lines["dsinga"].values()] == lines["by hand"]
    assert [*lines["400 steps"].values()] == lines["exact"]


def test_hidden_layers_recognise_more_digits(run: Run) -> None:
    accuracy = {name: row["test accuracy"] for name, row in value(run("2-digits"), "table").items()}
    assert 0.9 < accuracy["softmax regression"] < min(accuracy["perceptron"], accuracy["convolution"])


def test_how_often_two_nets_agree_is_no_third_accuracy(run: Run) -> None:
    *accuracies, agreement = value(run("6-sentiment"), "accuracy").items()
    assert [name for name, _ in accuracies] == ["accuracy of the convolution", "accuracy of the LSTM"]
    assert agreement[0] == "share of sentences to which both give the same answer"
    assert sum(accuracy for _, accuracy in accuracies) - 1 <= agreement[1] + 0.001 < 1.002


def test_names_are_found_and_shown_in_their_sentences(run: Run) -> None:
    book = run("7-labels")
    first, *_, last = value(book, "train")
    assert first < 0.3
    assert last > 0.8
    gold, predicted = (result(book, name)["text/html"] for name in ("look", "found"))
    assert gold.count("<br>") == predicted.count("<br>") == 9
    assert gold.count("background:") > 8 + 2
    assert value(book, "transitions")["I-person"][2:] == "person"
