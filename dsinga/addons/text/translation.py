"""Translates by beam search with a net that scores the next word after a source sentence and the words so far.

The encoder (all layers that do not depend on the words so far) is computed once a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.addons.text.vocabulary import SENTENCE_END, SENTENCE_START, UNKNOWN, SymbolEncoder
from dsinga.api.argument_types import typed
from dsinga.api.jobs_with_data import Result, roots
from dsinga.api.workspaces import trained_params
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, resolve
from dsinga.job import Job, LayerType, NetConf, Phase, load
from dsinga.layers import RecordInfo, Records
from dsinga.net import NeuralNet, create_net, filter_layers
from dsinga.net.needed_layers import needed_layers, with_followers
from dsinga.ops import Array, Processor
from dsinga.passes.predictor import ONE_CORE, Predictor
from dsinga.passes.processors import forward_processor
from dsinga.reading.bind_records import input_layer
from dsinga.training import check_params

SENTENCES_AT_ONCE = 32
PADDING = 4  # sentences are padded to a multiple of this length, so that fewer nets are made


class TranslationLayers(NamedTuple):
    """The names of a translator's layers: both inputs, and the scores of the next word."""

    source: str
    target: str
    scores: str


def translation_layers(conf: NetConf) -> TranslationLayers:
    """Find a translator's layers: both inputs, and the scores of the next word.

    Its loss is a kSoftmaxLoss with ``per_step``, with labels from the input layer of the words so far. The other input
    layer has the source sentences.
    """
    layers = {layer.name: layer for layer in filter_layers(conf, Phase.kTest)}
    inputs = [name for name, layer in layers.items() if not layer.srclayers]
    for layer in layers.values():
        if layer.type is LayerType.kSoftmaxLoss and layer.per_step and layer.srclayers[1:2] and len(inputs) == 2:
            target = layer.srclayers[1]
            if target in inputs:
                return TranslationLayers(next(name for name in inputs if name != target), target, layer.srclayers[0])
    raise conf.error(
        "the net cannot translate: it needs two input layers in the test phase, of the source sentences and of the "
        "target sentences, and a kSoftmaxLoss per_step with the labels of the latter"
    )


def one_word_net(conf: NetConf) -> NeuralNet:
    """Create a translator's net for sentences of one word, with all params."""
    source, target, scores = translation_layers(conf)
    infos = {source: RecordInfo((1,), 1, has_labels=False), target: RecordInfo((1,), 1, label_shape=(1,))}
    needed = needed_layers(conf, Phase.kTest, (scores,))
    names = {layer.name for layer in needed.layer}
    for name, role in ((source, "source"), (target, "target")):
        if name not in names:
            raise conf.error(f"the net cannot translate: {scores!r} does not depend on {name!r}, the {role} sentences")
    return create_net(needed, Phase.kTest, infos)


@typed()
def translate(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    sentences: Sequence[str],
    beam: int = 5,
    length_penalty: float = 0.6,
    *,
    data_root: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Translate sentences, texts of words separated by blanks, by beam search.

    ``job`` is a translator, such as :func:`dsinga.models.gru_translator`; its stores have the words of both languages.
    ``params`` are as for :func:`evaluate`. Beam search extends the ``beam`` most probable beginnings at each step. Log
    probabilities are divided by ((5 + words) / 6)^``length_penalty``; 0 prefers short translations. Raises UserError
    for bad input, such as an empty sentence.
    """
    job = job if isinstance(job, Job) else load(job)
    where = roots(job, data_root)
    trained = trained_params(job, params, where)
    if isinstance(sentences, str):
        raise UserError("sentences must be a list of texts, not one text; put it into a list")
    if not sentences:
        raise UserError("there are no sentences to translate; give a list of at least one text")
    names = translation_layers(job.neuralnet)
    source, target = (_vocabulary(job, name, where) for name in (names.source, names.target))
    for mark in (SENTENCE_START, SENTENCE_END):
        if mark not in target:
            raise UserError(
                f"the vocabulary of layer {names.target!r} lacks {mark}; give it a store made with: "
                "dsinga data import pairs"
            )
    encoder = SymbolEncoder(source)
    encoded = [_encode(encoder, number, sentence) for number, sentence in enumerate(sentences, 1)]
    processor = forward_processor(job, one_word_net(job.neuralnet))
    translator = Translator(job.neuralnet, trained, target.index(SENTENCE_START), target.index(SENTENCE_END), processor)
    excluded = [target.index(UNKNOWN)] if UNKNOWN in target else []
    return [
        " ".join(target[code] for code in hypothesis.codes)
        for hypothesis in translator.translate(encoded, beam, length_penalty, excluded)
    ]


def _encode(encoder: SymbolEncoder, number: int, sentence: str) -> list[int]:
    try:
        return encoder.encode_symbols(sentence.lower().split())
    except UserError as error:
        raise UserError(f"sentence {number}: {error}") from None


def _vocabulary(job: Job, name: str, roots: Sequence[str]) -> tuple[str, ...]:
    layer = next((layer for layer in filter_layers(job.neuralnet, Phase.kTrain) if layer.name == name), None)
    if layer is None or layer.store_conf is None or not layer.store_conf.path:
        raise UserError(f"layer {name!r} reads no store in training, so the words of its codes are unknown")
    store = RecordStore(resolve(layer.store_conf.path, roots))
    if not store.vocabulary:
        raise UserError(f"{store.location} has no vocabulary; give a store made with: dsinga data import pairs")
    return store.vocabulary


class Translator:
    """A trained net that translates codes of one language to codes of another.

    ``start`` is the code with which target sentences begin, ``end`` the code after their last word.
    """

    def __init__(
        self, conf: NetConf, params: Mapping[str, Array], start: int, end: int, processor: Processor = ONE_CORE
    ):
        self.layers = translation_layers(conf)
        self._start, self._end, self._processor = start, end, processor
        net = one_word_net(conf)
        check_params(net, params)
        arrays = {name: np.ascontiguousarray(params[name], np.float32) for name in net.params}
        self._predictor = Predictor(net, arrays)
        self._nets: dict[tuple[object, ...], NeuralNet] = {}
        self._split(conf)

    def _split(self, conf: NetConf) -> None:
        _, target, scores = self.layers
        whole = needed_layers(conf, Phase.kTest, (scores,))
        layers = {layer.name: layer for layer in whole.layer}
        decoder = with_followers({target}, layers.values())
        taken = [each for name in layers if name in decoder for each in layers[name].srclayers]
        self._handed = tuple(name for name in layers if name not in decoder and name in taken)
        top = layers[scores]
        by_step = top.per_step and len(top.srclayers) == 1 and top.srclayers[0] in decoder
        self._last = top.srclayers[0] if by_step else scores
        self._encoder_conf = needed_layers(whole, Phase.kTest, self._handed)
        inputs = [input_layer(name) for name in self._handed]
        decoder_layers = [layer for name, layer in layers.items() if name in decoder]
        self._decoder_conf = needed_layers(whole.replace(layer=[*inputs, *decoder_layers]), Phase.kTest, (self._last,))
        self._head_conf = needed_layers(whole.replace(layer=[input_layer(self._last), top]), Phase.kTest, (scores,))

    def translate(
        self, sentences: Sequence[Sequence[int]], beam: int = 5, alpha: float = 0.6, excluded: Sequence[int] = ()
    ) -> list[Hypothesis]:
        """Translate sentences of codes; return the best hypothesis of :func:`beam_search` for each.

        A translation has at most 10 words more than twice the sentence.
        """
        for number, codes in enumerate(sentences, 1):
            if not len(codes):
                raise UserError(f"sentence {number} is empty; leave it out")
        order = sorted(range(len(sentences)), key=lambda k: (len(sentences[k]), k))
        result: list[Hypothesis | None] = [None] * len(sentences)
        for begin in range(0, len(order), SENTENCES_AT_ONCE):
            chosen = order[begin : begin + SENTENCES_AT_ONCE]
            part = [sentences[k] for k in chosen]
            for k, hypothesis in zip(chosen, self._translate_batch(part, beam, alpha, excluded), strict=True):
                result[k] = hypothesis
        return [hypothesis for hypothesis in result if hypothesis is not None]

    def _translate_batch(
        self, sentences: Sequence[Sequence[int]], beam: int, alpha: float, excluded: Sequence[int]
    ) -> list[Hypothesis]:
        encoded = self._encode(sentences)

        def next_scores(rows: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
            scores = self._score(encoded, rows, prefixes)
            if beam > (count := scores.shape[1]):
                raise UserError(f"the beam is {beam}, but the target language has {count} words; give a smaller beam")
            return scores

        limits = [2 * len(codes) + 10 for codes in sentences]
        return beam_search(next_scores, limits, self._start, self._end, beam, alpha, excluded)

    def _encode(self, sentences: Sequence[Sequence[int]]) -> dict[str, Records]:
        steps = -(-max(map(len, sentences)) // PADDING) * PADDING
        codes = np.full((len(sentences), steps), -1, np.int32)
        for row, sentence in enumerate(sentences):
            codes[row, : len(sentence)] = sentence
        records = {self.layers.source: Records(codes)}
        return self._forward("encoder", self._encoder_conf, records, self._handed)

    def _score(self, encoded: Mapping[str, Records], rows: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        """Compute the scores (R, V) of the word after each prefix (R, t), for the encoded sentences ``rows``."""
        records = {
            name: Records(data[rows], None if labels is None else labels[rows])
            for name, (data, labels) in encoded.items()
        }
        records[self.layers.target] = Records(prefixes.astype(np.int32), np.zeros(prefixes.shape, np.int64))
        below = self._forward("decoder", self._decoder_conf, records, (self._last,))[self._last].data[:, -1:]
        if self._last == self.layers.scores:
            return np.ascontiguousarray(below[:, 0])
        records = {self._last: Records(np.ascontiguousarray(below))}
        return self._forward("head", self._head_conf, records, (self.layers.scores,))[self.layers.scores].data[:, 0]

    def _forward(
        self, part: str, conf: NetConf, records: Mapping[str, Records], keep: tuple[str, ...]
    ) -> dict[str, Records]:
        shapes = tuple((name, batch.data.shape[1:]) for name, batch in records.items())
        net = self._nets.get((part, shapes))
        if net is None:
            infos = {name: _info(batch) for name, batch in records.items()}
            net = self._nets[part, shapes] = create_net(conf, Phase.kTest, infos)
        rows = len(next(iter(records.values())).data)
        features, _ = self._predictor.for_net(net).forward(records, rows, keep, processor=self._processor)
        return {name: Records(_as_codes(data), labels) for name, (data, labels) in features.items()}


def _as_codes(feature: np.ndarray) -> np.ndarray:
    return feature.astype(np.int32) if feature.dtype.kind == "i" else feature


def _info(records: Records) -> RecordInfo:
    labels = records.labels
    label_shape = () if labels is None else tuple(labels.shape[1:])
    return RecordInfo(
        tuple(records.data.shape[1:]), len(records.data), has_labels=labels is not None, label_shape=label_shape
    )


Scorer = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Returns the scores (R, V) of the next code for prefixes (R, t) and the sequence (R,) of each."""


class Hypothesis(NamedTuple):
    """A translation found by beam search: codes without marks, and log probability / :func:`length_penalty`."""

    codes: tuple[int, ...]
    score: float


class OpenHypotheses(NamedTuple):
    """All open hypotheses of beam search: the sequence of each (R,), its codes (R, t), and log probability (R,)."""

    sequences: np.ndarray
    prefixes: np.ndarray
    logs: np.ndarray


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)^alpha, the divisor of sequences' log probabilities; 1 for an alpha of 0.

    Without it, short sequences win. Wu et al., Google's Neural Machine Translation System (2016), formula 14.
    """
    return ((5 + length) / 6) ** alpha


def beam_search(
    next_scores: Scorer,
    max_lengths: Sequence[int],
    start: int,
    end: int,
    beam: int = 5,
    alpha: float = 0.6,
    excluded: Sequence[int] = (),
) -> list[Hypothesis]:
    """Search for the most probable code sequences; return the best hypothesis for each sequence.

    A sequence ends with its ``beam`` hypotheses, or as soon as no open one can exceed its best score. The softmax of
    ``next_scores`` is the next code's probability; ``max_lengths`` do not count ``end``. No sequence gets ``excluded``
    codes or ``start``; ``alpha`` is the exponent of :func:`length_penalty`.
    """
    if beam < 1:
        raise UserError(f"the beam is {beam}; give 1, which takes the most probable word each time, or more")
    if not alpha >= 0:
        raise UserError(f"the length penalty is {alpha}; give 0, for none, or more")
    limits = np.asarray(max_lengths)
    count = len(limits)
    ended: list[list[Hypothesis]] = [[] for _ in limits]
    open_ = OpenHypotheses(np.arange(count), np.full((count, 1), start), np.zeros(count))
    while len(open_.sequences):
        scores = next_scores(open_.sequences, open_.prefixes)
        logs = _log_probabilities(scores, [start, *excluded])
        logs[(open_.prefixes.shape[1] > limits[open_.sequences])[:, None] & (np.arange(logs.shape[1]) != end)] = -np.inf
        open_ = _advance(open_, logs, ended, end, beam, alpha)
        open_ = _promising(open_, ended, limits, alpha)
    if not all(ended):
        raise UserError("the net gives scores that are not finite; translate with params of an earlier checkpoint")
    return [max(hypotheses, key=lambda hypothesis: hypothesis.score) for hypotheses in ended]


def _log_probabilities(scores: np.ndarray, excluded: Sequence[int]) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    shifted[:, excluded] = -np.inf
    return shifted


def _advance(
    open_: OpenHypotheses, logs: np.ndarray, ended: list[list[Hypothesis]], end: int, beam: int, alpha: float
) -> OpenHypotheses:
    width = min(beam, logs.shape[1])
    codes, best = _highest(logs, width)
    totals = best + open_.logs[:, None]
    rows = np.repeat(np.arange(len(logs)), width)
    codes, totals, sequences = codes.reshape(-1), totals.reshape(-1), np.repeat(open_.sequences, width)
    order = np.lexsort((codes, rows, -totals, sequences))  # by sequence, then by probability
    sequences = sequences[order]
    places = np.array([beam - len(hypotheses) for hypotheses in ended])
    rank = np.arange(len(order)) - np.searchsorted(sequences, sequences)
    order = order[(rank < places[sequences]) & np.isfinite(totals[order])]
    ends = codes[order] == end
    length = open_.prefixes.shape[1]  # with the end, without the start
    for k in order[ends]:
        score = float(totals[k] / length_penalty(length, alpha))
        ended[open_.sequences[rows[k]]].append(Hypothesis(tuple(open_.prefixes[rows[k], 1:].tolist()), score))
    still_open = order[~ends]
    prefixes = np.concatenate([open_.prefixes[rows[still_open]], codes[still_open, None]], axis=1)
    return OpenHypotheses(open_.sequences[rows[still_open]], prefixes, totals[still_open])


def _highest(logs: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's ``count`` codes with the highest numbers, and these as float64; overwrite ``logs``."""
    rows = np.arange(len(logs))
    codes, best = np.empty((len(logs), count), np.int64), np.empty((len(logs), count))
    for k in range(count):
        codes[:, k] = logs.argmax(axis=1)
        best[:, k] = logs[rows, codes[:, k]]
        logs[rows, codes[:, k]] = -np.inf
    return codes, best


def _promising(
    open_: OpenHypotheses, ended: list[list[Hypothesis]], limits: np.ndarray, alpha: float
) -> OpenHypotheses:
    """Keep the open hypotheses that can still exceed the score of the sequence's best ended one."""
    best = np.array([max((hypothesis.score for hypothesis in hypotheses), default=-np.inf) for hypotheses in ended])
    bound = open_.logs / np.array([length_penalty(limit + 1, alpha) for limit in limits[open_.sequences]])
    return OpenHypotheses(*(array[bound > best[open_.sequences]] for array in open_))
