"""Generating text with a trained net that predicts the next character or word."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from dsinga import training
from dsinga.data import open_text, resolve
from dsinga.data.vocabulary import decode, encode, has_words, read_vocabulary
from dsinga.errors import UserError
from dsinga.job import Job
from dsinga.net import NeuralNet
from dsinga.ops import Ops
from dsinga.worker.param_slices import Arrays


def generate(
    job: Job, params: Arrays, seed_text: str, length: int, temperature: float, seed: int, roots: Sequence[str]
) -> str:
    """Return a text of ``length`` characters, or words after a blank, that continues ``seed_text``.

    :func:`dsinga.api.generate` explains the arguments. Raises UserError for bad input.
    """
    if length < 0 or not 0 <= temperature < float("inf"):
        raise UserError(f"length ({length}) and temperature ({temperature}) must be numbers of at least 0")
    symbols = _vocabulary(job, roots)
    generator = training.generator(job.neuralnet, len(symbols))
    begin = encode(seed_text, symbols) or [int(np.random.default_rng([seed, 1]).integers(len(symbols)))]
    codes = training.generate(generator, params, begin, length, temperature, seed, gpu_ops(job, generator.net))
    return (" " if seed_text and has_words(symbols) else "") + decode(codes, symbols)


def gpu_ops(job: Job, net: NeuralNet) -> Ops | None:
    """Return the kernels of a GPU if the job or the configuration asks for one, else None."""
    from dsinga.settings import read_setting  # imports Dask, which other commands do not need

    if not job.gpu and read_setting("device") in ("auto", "cpu"):
        return None
    from dsinga.cluster.inference.inference import local_processor  # imports distributed, which a CPU does not need

    return local_processor(job, net).ops()


def _vocabulary(job: Job, roots: Sequence[str]) -> tuple[str, ...]:
    """Return the characters or words of the codes, from the job's text, or else from its ``vocab_path``."""
    texts = [layer.char_rnn_conf for layer in job.neuralnet.layer if layer.char_rnn_conf]
    for conf in texts:
        with contextlib.suppress(UserError):
            if conf.path:
                return open_text(conf.path, conf.vocab_path, roots).vocabulary
    for conf in texts:
        if conf.vocab_path:
            return read_vocabulary(resolve(conf.vocab_path, roots))
    paths = [conf.path for conf in texts if conf.path]
    if paths:
        return open_text(paths[0], None, roots).vocabulary  # raises the reason why it cannot be read
    raise job.neuralnet.error("the net reads no text: none of its layers has char_rnn_conf { vocab_path: ... }")
