"""Generates text, code by code, with a net of one step that carries its states."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.addons.text.vocabulary import SymbolEncoder, Tokenizer, read_tokenizer, read_vocabulary, stored_tokenizer
from dsinga.api.argument_types import typed
from dsinga.api.jobs_with_data import Result, roots
from dsinga.api.workspaces import trained_params
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, open_text, resolve
from dsinga.job import Job, LayerConf, LayerType, NetConf, Phase, load
from dsinga.layers import RecordInfo, Records
from dsinga.layers.sequences.attention import AttentionLayer
from dsinga.layers.sequences.recurrent import RecurrentConf
from dsinga.net import NeuralNet, create_net, filter_layers
from dsinga.ops import Array, Processor
from dsinga.passes.predictor import ONE_CORE, Predictor
from dsinga.passes.processors import forward_processor
from dsinga.training import check_params

READERS = (LayerType.kCharRNN, LayerType.kRNNDummy)
SCORERS = (LayerType.kSoftmaxLoss, LayerType.kCudnnSoftmaxLoss, LayerType.kSoftmax, LayerType.kCudnnSoftmax)


class Generator(NamedTuple):
    """A net that reads a code and scores the next one, with its input and score layers' names."""

    net: NeuralNet
    reader: str
    scores: str


def generator(conf: NetConf, codes: int) -> Generator:
    """Convert a net that reads texts of ``codes`` different codes to a generator of one step and one row.

    It has the layers below the softmax, not unrolled; attention keeps keys and values of as many steps as training
    sees.
    """
    layers = filter_layers(conf, Phase.kTrain)
    reader = next((layer for layer in layers if layer.type in READERS), None)
    top = next((layer for layer in layers if layer.type in SCORERS), None)
    if reader is None or top is None:
        missing = "kCharRNN" if reader is None else "kSoftmaxLoss or kSoftmax"
        raise conf.error(f"the net cannot generate a text: it has no {missing} layer")
    below = _below(top.srclayers[0], {layer.name: layer for layer in layers})
    if reader.name not in below:
        raise top.error(f"the net cannot generate a text: {top.name!r} does not depend on {reader.name!r}")
    kept = reader.char_rnn_conf.unroll_len if reader.char_rnn_conf else 1
    one_step_layers = [_one_step(layer, codes, kept) for layer in layers if layer.name in below]
    info = RecordInfo((1,), 1, has_labels=False, continues=True, codes=codes)
    net = create_net(conf.replace(layer=one_step_layers, unroll_len=1), Phase.kTrain, {reader.name: info})
    return Generator(net, reader.name, top.srclayers[0])


def _below(name: str, layers: Mapping[str, LayerConf]) -> set[str]:
    below, pending = set[str](), [name]
    while pending:
        name = pending.pop()
        if name in layers and name not in below:
            below.add(name)
            pending.extend(layers[name].srclayers)
    return below


def _one_step(layer: LayerConf, codes: int, kept: int) -> LayerConf:
    """Configure a layer for one step: not unrolled, reading codes, or carrying its state."""
    layer = layer.replace(unroll_len=None, unroll_conn_type=[], shift=[], include=[], exclude=[])
    if layer.type is LayerType.kAttention:
        return _cached(layer, kept)
    if layer.type is LayerType.kPositionalEncoding:
        raise layer.error(
            f"layer {layer.name!r} adds the positions of whole sequences, which a step of a generated text does not "
            "know; use rotary in the attention_conf of each kAttention instead"
        )
    if layer.type in READERS:
        return layer.replace(type=LayerType.kCharRNN, srclayers=[], char_rnn_conf={"unroll_len": 1})
    if layer.type is LayerType.kOneHot and not (layer.onehot_conf and layer.onehot_conf.vocab_size):
        return layer.replace(onehot_conf={"vocab_size": codes})  # as in SINGA's sample.conf
    for field, value in vars(layer).items():
        if isinstance(value, RecurrentConf):
            if value.bidirectional:
                raise value.error(f"layer {layer.name!r} is bidirectional: it cannot predict the next code", None)
            return layer.replace(**{field: value.replace(carry=True)})
    return layer


def _cached(layer: LayerConf, kept: int) -> LayerConf:
    conf = layer.attention_conf or AttentionLayer.Conf()
    if not conf.causal:
        raise layer.error(f"layer {layer.name!r} sees later steps: it cannot predict the next code; make it causal")
    settings = {"num_heads": conf.num_heads, "score": conf.score, "rotary": conf.rotary, "steps": kept}
    return layer.replace(type=LayerType.kCachedAttention, attention_conf=None, cachedattention_conf=settings)


@typed()
def generate(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None = None,
    seed_text: str = "",
    length: int = 500,
    temperature: float = 1.0,
    seed: int = 0,
    *,
    data_root: str | os.PathLike[str] | None = None,
) -> str:
    """Generate a text of ``length`` characters, or words after a blank, that continues ``seed_text``.

    ``job`` has a net that predicts the next character or word (kCharRNN); ``params`` are arrays by name or the path of
    a checkpoint, by default as for :func:`evaluate`. Characters are drawn from the predicted distribution: a lower
    ``temperature`` prefers the more probable ones, and 0 always takes the most probable one. Without a ``seed_text``
    the first one is drawn uniformly. The same ``seed`` gives the same text.

    Recurrent layers continue from their states; causal attention keeps the keys and values of earlier steps. A GPT sees
    the newest ``steps`` codes. A job made for generating, such as SINGA's sample.conf, works too.

    Raises UserError for bad input, such as characters that the vocabulary lacks.
    """
    job = job if isinstance(job, Job) else load(job)
    where = roots(job, data_root)
    trained = trained_params(job, params, where)
    if length < 0 or not 0 <= temperature < float("inf"):
        raise UserError(f"length ({length}) and temperature ({temperature}) must be numbers of at least 0")
    encoder = _encoder(job, where)
    count = len(encoder.symbols)
    text_generator = generator(job.neuralnet, count)
    given = encoder.encode(seed_text)
    begin = given or [int(np.random.default_rng([seed, 1]).integers(count))]
    processor = forward_processor(job, text_generator.net)
    codes = generated_codes(text_generator, trained, begin, length, temperature, seed, processor)
    return _continuation(encoder, seed_text, given, list(codes))


def generated_codes(
    generator: Generator,
    params: Mapping[str, Array],
    begin: Sequence[int],
    length: int,
    temperature: float = 1.0,
    seed: int = 0,
    processor: Processor = ONE_CORE,
) -> Iterator[int]:
    """Generate ``length`` codes that continue ``begin``, each drawn by the net's scores after all codes before it.

    They are drawn from the softmax of scores / ``temperature``; for 0 they are the most probable ones.
    """
    check_params(generator.net, params)
    predictor = Predictor(generator.net, params, phase=Phase.kTest, carries_state=True)
    rng = np.random.default_rng(seed)

    def step(code: int) -> np.ndarray:
        record = {generator.reader: Records(np.full((1, 1), code, np.int64))}
        features, _ = predictor.forward(record, 1, (generator.scores,), processor=processor)
        return features[generator.scores].data.reshape(-1)

    for code in begin[:-1]:
        step(code)
    code = begin[-1]
    for _ in range(length):
        code = draw(step(code), temperature, rng)
        yield code


def draw(scores: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draw a code from softmax(scores / temperature); for ``temperature`` 0, the code with the highest score."""
    if temperature == 0:
        return int(scores.argmax())
    shares = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    sums = np.cumsum(shares)
    return min(int(np.searchsorted(sums, rng.random() * sums[-1], "right")), len(scores) - 1)


def _continuation(encoder: SymbolEncoder | Tokenizer, seed_text: str, given: list[int], codes: list[int]) -> str:
    """Decode ``codes`` after the text of ``given``, because tokens' texts may depend on it."""
    whole, before = encoder.decode([*given, *codes]), encoder.decode(given)
    if given and whole.startswith(before):
        return whole.removeprefix(before)
    return (encoder.separator if seed_text else "") + encoder.decode(codes)


def _encoder(job: Job, roots: Sequence[str]) -> SymbolEncoder | Tokenizer:
    texts = [layer.char_rnn_conf for layer in job.neuralnet.layer if layer.char_rnn_conf]
    for conf in texts:
        with contextlib.suppress(UserError):
            if conf.path:
                return _encoder_of(open_text(conf.path, conf.vocab_path, roots))
    for conf in texts:
        if conf.vocab_path:
            path = resolve(conf.vocab_path, roots)
            return read_tokenizer(path) or SymbolEncoder(read_vocabulary(path))
    paths = [conf.path for conf in texts if conf.path]
    if paths:
        return _encoder_of(open_text(paths[0], None, roots))  # raises the reason why it cannot be read
    raise job.neuralnet.error("the net reads no text: none of its layers has char_rnn_conf { vocab_path: ... }")


def _encoder_of(store: RecordStore) -> SymbolEncoder | Tokenizer:
    return stored_tokenizer(store) or SymbolEncoder(store.vocabulary)
