"""Translating sentences with a trained net, from words to words."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.cluster.inference.text_generation import gpu_ops
from dsinga.data import RecordStore, resolve
from dsinga.data.vocabulary import SENTENCE_END, SENTENCE_START, UNKNOWN, SymbolEncoder
from dsinga.errors import UserError
from dsinga.job import Job, Phase
from dsinga.net import filter_layers
from dsinga.training.translation import Translator, one_word_net, translation_layers
from dsinga.worker.param_slices import Arrays


def translate(
    job: Job, params: Arrays, sentences: Sequence[str], beam: int, length_penalty: float, roots: Sequence[str]
) -> list[str]:
    """Return the translation of each of ``sentences``.

    :func:`dsinga.api.translate` explains the arguments. Raises UserError for bad input.
    """
    if isinstance(sentences, str):
        raise UserError("sentences must be a list of texts, not one text; put it into a list")
    if not sentences:
        raise UserError("there are no sentences to translate; give a list of at least one text")
    if beam < 1:
        raise UserError(f"the beam is {beam}; give 1, which takes the most probable word each time, or more")
    names = translation_layers(job.neuralnet)
    source, target = (_vocabulary(job, name, roots) for name in (names.source, names.target))
    for mark in (SENTENCE_START, SENTENCE_END):
        if mark not in target:
            raise UserError(
                f"the vocabulary of layer {names.target!r} lacks {mark}; give it a store made with: "
                "dsinga data import pairs"
            )
    if beam > len(target):
        raise UserError(f"the beam is {beam}, but the target language has {len(target)} words; give a smaller beam")
    encoder = SymbolEncoder(source)
    encoded = [_encode(encoder, number, sentence) for number, sentence in enumerate(sentences, 1)]
    ops = gpu_ops(job, one_word_net(job.neuralnet))
    translator = Translator(job.neuralnet, params, target.index(SENTENCE_START), target.index(SENTENCE_END), ops)
    excluded = [target.index(UNKNOWN)] if UNKNOWN in target else []
    return [
        " ".join(target[code] for code in hypothesis.codes)
        for hypothesis in translator.translate(encoded, beam, length_penalty, excluded)
    ]


def _encode(encoder: SymbolEncoder, number: int, sentence: str) -> list[int]:
    """Return the codes of the words of a sentence; raise UserError where it has none."""
    try:
        codes = encoder.encode_symbols(sentence.lower().split())
    except UserError as error:
        raise UserError(f"sentence {number}: {error}") from None
    if not codes:
        raise UserError(f"sentence {number} is empty; leave it out")
    return codes


def _vocabulary(job: Job, name: str, roots: Sequence[str]) -> tuple[str, ...]:
    """Return the words of the codes that the input layer ``name`` reads in training."""
    layer = next((layer for layer in filter_layers(job.neuralnet, Phase.kTrain) if layer.name == name), None)
    if layer is None or layer.store_conf is None or not layer.store_conf.path:
        raise UserError(f"layer {name!r} reads no store in training, so the words of its codes are unknown")
    store = RecordStore(resolve(layer.store_conf.path, roots))
    if not store.vocabulary:
        raise UserError(f"{store.location} has no vocabulary; give a store made with: dsinga data import pairs")
    return store.vocabulary
