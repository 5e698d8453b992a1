"""Translation: the scores of the split net are those of the whole, beam search with a net, its command, bad input."""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dsinga
from dsinga import models
from dsinga.addons.text.translation import Hypothesis, Translator, beam_search, length_penalty
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group
from dsinga.data import import_records
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, to_text
from dsinga.training import BleuCounts, bleu, bleu_counts
from notebooks.book.sample_translations import write_pairs
from tests.support.refusals import refused

START, END, SOURCE_WORDS, TARGET_WORDS = 1, 2, 7, 5
JOBS = {
    "gru": models.gru_translator(SOURCE_WORDS, TARGET_WORDS, embedding=6, hidden=4),
    "transformer": models.transformer(SOURCE_WORDS, TARGET_WORDS, width=8, heads=2, hidden=6, blocks=2),
}


@pytest.fixture(scope="module", params=JOBS)
def job(request) -> Job:
    return JOBS[request.param]


def local_net(job: Job) -> tuple[LocalNet, dict[str, np.ndarray]]:
    """Return a net, and params that are large enough for scores that differ."""
    codes = np.ones((2, 3), np.int32)
    net = LocalNet(job, {"source": codes, "target": codes}, {"target": codes})
    rng = np.random.default_rng(4)
    return net, {name: rng.normal(0, 0.7, v.shape).astype(np.float32) for name, v in net.initial_params().items()}


def probabilities(job: Job, params: dict[str, np.ndarray], source: np.ndarray, target: np.ndarray) -> np.ndarray:
    x = {"source": source.astype(np.int32), "target": target.astype(np.int32)}
    return LocalNet(job, x, {"target": target}).forward(params, x, {"target": target}, layers=["loss"]).outputs["loss"]


def test_the_score_of_a_translation_is_its_probability_in_the_whole_net(job: Job):
    params = local_net(job)[1]
    sentences = [[3, 4, 5, 6, 0], [5], [6, 6]]
    found = Translator(job.neuralnet, params, START, END).translate(sentences, beam=2)
    for sentence, hypothesis in zip(sentences, found, strict=True):
        target = np.array([[START, *hypothesis.codes]])
        each = probabilities(job, params, np.array([sentence]), target)[0]
        total = np.log(each[np.arange(len(each)), [*hypothesis.codes, END]]).sum()
        assert hypothesis.score == pytest.approx(total / length_penalty(len(each), 0.6), rel=1e-4)


def test_a_beam_of_one_takes_the_most_probable_word_each_time(job: Job):
    params, sentence = local_net(job)[1], [3, 5]
    (found,) = Translator(job.neuralnet, params, START, END).translate([sentence], beam=1)
    codes = [START]
    while len(codes) <= 14:
        last = probabilities(job, params, np.array([sentence]), np.array([codes]))[0, -1].copy()
        last[START] = 0
        if last.argmax() == END:
            break
        codes.append(int(last.argmax()))
    assert found.codes == tuple(codes[1:])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, Job, dsinga.Result]:
    folder = tmp_path_factory.mktemp("translation")
    write_pairs(folder / "raw", train=600, test=30)
    for part, name in (("train", "train"), ("val", "val"), ("test", "test_2016_flickr")):
        options = {"min_count": 1} if part == "train" else {"vocabulary": str(folder / "train")}
        raw = folder / "raw" / name
        import_records("pairs", f"{raw}.de", folder / part, target=f"{raw}.en", **options)
    sizes = [len(dsinga.data.RecordStore(folder / "train" / f"{s}.zarr").vocabulary) for s in ("source", "target")]
    job = models.gru_translator(*sizes, str(folder), embedding=32, hidden=32, dropout=0.0, batchsize=16, train_steps=90)
    job.updater.learning_rate.base_lr = 0.01
    result = dsinga.train(job, progress=False, workspace=str(folder / "workspace"))
    (folder / "job.conf").write_text(to_text(job), encoding="utf-8")
    return folder, job, result


def lines(folder: Path, language: str) -> list[str]:
    return (folder / "raw" / f"test_2016_flickr.{language}").read_text(encoding="utf-8").splitlines()


def test_a_trained_net_translates_sentences_that_it_has_not_seen(trained):
    folder, job, result = trained
    translations = dsinga.translate(job, result.params, lines(folder, "de"))
    assert bleu(translations, lines(folder, "en")) > 50
    pairs = zip(lines(folder, "de"), translations, strict=True)
    lower, expected = zip(*[pair for pair in pairs if "ß" not in pair[0]][:2], strict=True)  # SS is its capital
    assert tuple(dsinga.translate(job, result, [sentence.upper() for sentence in lower])) == expected


def test_the_command_translates_a_file_and_reports_bleu(trained):
    folder, job, result = trained
    raw = folder / "raw" / "test_2016_flickr"
    options = ["--checkpoint", str(folder / "workspace" / "checkpoint"), "--beam", "2"]
    files = ["--input", f"{raw}.de", "--references", f"{raw}.en"]
    done = CliRunner().invoke(main_group, ["translate", str(folder / "job.conf"), *options, *files])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == dsinga.translate(job, result.params, lines(folder, "de"), beam=2)
    assert "translated 30 sentences in" in done.stderr
    assert "BLEU" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sentences": ["der hund", "  "]}, "sentence 2 is empty; leave it out"),
        ({"beam": 0}, "the beam is 0; give 1"),
        ({"beam": 1000}, "the beam is 1000, but the target language has .* words; give a smaller beam"),
        ({"sentences": "der hund"}, "is a list of texts"),
        ({"sentences": []}, "there are no sentences to translate; give a list of at least one text"),
        ({"length_penalty": -1}, "the length penalty is -1"),
        ({"params": {}}, "which the given params lack"),
    ],
)
def test_bad_input_is_refused(trained, arguments: dict, message: str):
    _, job, result = trained
    with pytest.raises(UserError, match=message):
        dsinga.translate(job, **{"params": result.params, "sentences": ["der hund ."], **arguments})


# BLEU: the examples of Papineni et al. (2002), counts that add up, and sacrebleu.
# Examples 1 and 2 of the paper, in lower case.
REFERENCES = (
    "it is a guide to action that ensures that the military will forever heed party commands",
    "it is the guiding principle which guarantees the military forces always being under the command of the party",
    "it is the practical guide for the army always to heed the directions of the party",
)
FIRST = "it is a guide to action which ensures that the military always obeys the commands of the party"
SECOND = "it is to insure the troops forever hearing the activity guidebook that party direct"


def test_the_precisions_of_the_first_example_of_the_paper():
    first, second = bleu_counts(FIRST, REFERENCES), bleu_counts(SECOND, REFERENCES)
    assert (first.matches[0], first.ngrams[0]) == (17, 18)
    assert (second.matches[0], second.ngrams[0]) == (8, 14)
    assert (first.matches[1], first.ngrams[1]) == (10, 17)
    assert (second.matches[1], second.ngrams[1]) == (1, 13)


def test_a_word_counts_as_often_as_in_one_reference():
    counts = bleu_counts("the the the the the the the", ("the cat is on the mat", "there is a cat on the mat"))
    assert (counts.matches[0], counts.ngrams[0]) == (2, 7)
    assert counts.bleu == 0, "without smoothing, no pair of words in common gives 0"


def test_the_length_is_that_of_the_closest_reference():
    counts = bleu_counts("a b c", ("a b", "a b c d", "a b c d e"))
    assert counts.reference_length == 2, "of two that are equally close, the shorter"
    assert bleu_counts("a b c d", "a b c d").bleu == pytest.approx(100)
    short = bleu_counts("a b c d", "a b c d e")
    assert short.brevity_penalty == pytest.approx(2.718281828459045 ** (1 - 5 / 4))
    assert BleuCounts().bleu == 0
    assert bleu_counts("", "a").brevity_penalty == 0


def texts(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices("abcd", k=generator.randint(4, 12))) for _ in range(count)]


def test_counts_of_parts_add_up_to_those_of_all():
    hypotheses, references = texts(20, 1), texts(20, 2)
    each = list(map(bleu_counts, hypotheses, references))
    parts = [sum(each[start::3], BleuCounts()) for start in range(3)]
    assert sum(parts, BleuCounts()) == sum(each, BleuCounts())
    assert sum(parts, BleuCounts()).bleu == bleu(hypotheses, references) > 0


@pytest.mark.parametrize("count", [1, 2])
def test_bleu_is_that_of_sacrebleu(count: int):
    sacrebleu = pytest.importorskip("sacrebleu", reason="compares with sacrebleu")
    hypotheses, references = texts(30, 3), [texts(30, seed) for seed in range(4, 4 + count)]
    expected = sacrebleu.corpus_bleu(hypotheses, references, tokenize="none", smooth_method="none", force=True).score
    several = [list(each) for each in zip(*references, strict=True)]
    assert bleu(hypotheses, several) == pytest.approx(expected, rel=1e-9)


# Beam search: brute force over all sequences, greedy search, ends of the search, and clear messages.
WORDS = 5


def scorer(seed: int):
    """Return scores of a random table of the sequence, the length and the last two codes."""
    table = np.random.default_rng(seed).normal(0, 2, (4, 6, WORDS, WORDS, WORDS)).astype(np.float32)

    def next_scores(sequences: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        before = prefixes[:, -2] if prefixes.shape[1] > 1 else prefixes[:, -1]
        return table[sequences, prefixes.shape[1], before, prefixes[:, -1]]

    return next_scores


def log_probability(next_scores, sequence: int, codes: Sequence[int]) -> float:
    total = 0.0
    for step, code in enumerate([*codes, END]):
        scores = next_scores(np.array([sequence]), np.array([[START, *codes[:step]]]))[0].astype(np.float64)
        total += scores[code] - np.log(np.exp(scores).sum())
    return total


def best_of_all(next_scores, sequence: int, longest: int, alpha: float) -> Hypothesis:
    words = [code for code in range(WORDS) if code not in (START, END)]
    every = itertools.chain.from_iterable(itertools.product(words, repeat=length) for length in range(longest + 1))
    return max(
        (
            Hypothesis(codes, log_probability(next_scores, sequence, codes) / length_penalty(len(codes) + 1, alpha))
            for codes in every
        ),
        key=lambda hypothesis: hypothesis.score,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_with_a_place_for_each_sequence_finds_the_best(seed: int, alpha: float):
    next_scores, limits = scorer(seed), [4, 2, 3]
    found = beam_search(next_scores, limits, START, END, beam=400, alpha=alpha)
    for sequence, (limit, hypothesis) in enumerate(zip(limits, found, strict=True)):
        expected = best_of_all(next_scores, sequence, limit, alpha)
        assert hypothesis.codes == expected.codes
        assert hypothesis.score == pytest.approx(expected.score, rel=1e-5)


def test_sequences_of_a_batch_do_not_influence_each_other():
    next_scores = scorer(3)
    together = beam_search(next_scores, [4, 4, 4], START, END, beam=2)
    for sequence, hypothesis in enumerate(together):
        alone = beam_search(lambda rows, prefixes, k=sequence: next_scores(rows + k, prefixes), [4], START, END, beam=2)
        assert alone == [hypothesis]


def test_the_search_ends_when_no_open_hypothesis_can_win():
    calls = []

    def next_scores(sequences: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        calls.append(prefixes.shape[1])
        return np.array([[0.0, -9, 9, 0, 0]] * len(sequences))

    assert beam_search(next_scores, [50], START, END, beam=5)[0].codes == ()
    assert len(calls) == 1


def test_excluded_codes_do_not_occur():
    free = beam_search(scorer(1), [4] * 4, START, END, beam=3)
    word = next(code for hypothesis in free for code in hypothesis.codes)
    found = beam_search(scorer(1), [4] * 4, START, END, beam=3, excluded=[word])
    assert all(word not in hypothesis.codes for hypothesis in found)


@pytest.mark.parametrize(
    ("options", "message"), [({"beam": 0}, "the beam is 0; give 1"), ({"alpha": -1.0}, "the length penalty is -1.0")]
)
def test_other_settings_are_refused(options: dict, message: str):
    refused(lambda: beam_search(scorer(0), [1], START, END, **options), message)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="scores that are not finite; translate with params of an earlier"):
        beam_search(lambda rows, prefixes: np.full((len(rows), WORDS), np.nan), [3], START, END)
