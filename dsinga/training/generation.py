"""Generating text: a net of one step, whose recurrent layers go on from their own states, is fed what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.job import CharRNNConf, LayerConf, LayerType, NetConf, OnehotConf, Phase, RecurrentConf
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net, filter_layers
from dsinga.ops import Array, Ops, get_ops
from dsinga.training.forward_pass import forward
from dsinga.training.initialisers import check_params

READERS = (LayerType.kCharRNN, LayerType.kRNNDummy)
SCORERS = (LayerType.kSoftmaxLoss, LayerType.kCudnnSoftmaxLoss, LayerType.kSoftmax, LayerType.kCudnnSoftmax)


class Generator(NamedTuple):
    """A net that reads one code and scores the next: ``reader`` and ``scores`` are the layers that do."""

    net: NeuralNet
    reader: str
    scores: str


def generator(conf: NetConf, codes: int) -> Generator:
    """Return the net of one step and one row for a net, such as SINGA's char-rnn, that reads texts of so many codes.

    It has the layers below the softmax of the training net, not unrolled; every recurrent layer carries its state. The
    layer that reads is a kCharRNN, or the kRNNDummy of SINGA's sample.conf. Raises UserError where there is none.
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
    own = [_one_step(layer, codes) for layer in layers if layer.name in below]
    info = RecordInfo((1,), 1, has_labels=False, continues=True, codes=codes)
    net = create_net(conf.replace(layer=own, unroll_len=1), Phase.kTrain, {reader.name: info})
    return Generator(net, reader.name, top.srclayers[0])


def _below(name: str, layers: Mapping[str, LayerConf]) -> set[str]:
    """Return the layers on which one depends, itself included."""
    found, waiting = set[str](), [name]
    while waiting:
        name = waiting.pop()
        if name in layers and name not in found:
            found.add(name)
            waiting.extend(layers[name].srclayers)
    return found


def _one_step(layer: LayerConf, codes: int) -> LayerConf:
    """Return the layer, not unrolled, as it generates: reading codes, or going on from its state."""
    layer = layer.replace(unroll_len=None, unroll_conn_type=[], shift=[], include=[], exclude=[], per_step=False)
    if layer.type in READERS:
        return layer.replace(type=LayerType.kCharRNN, srclayers=[], char_rnn_conf=CharRNNConf(unroll_len=1))
    if layer.type is LayerType.kOneHot and not (layer.onehot_conf and layer.onehot_conf.vocab_size):
        return layer.replace(onehot_conf=OnehotConf(vocab_size=codes))  # as in SINGA's sample.conf
    for field, value in vars(layer).items():
        if isinstance(value, RecurrentConf):
            if value.bidirectional:
                raise value.error(f"layer {layer.name!r} reads backwards too: it cannot say what comes next", None)
            return layer.replace(**{field: value.replace(carry=True)})
    return layer


def generate(
    made: Generator,
    params: Mapping[str, Array],
    begin: Sequence[int],
    length: int,
    temperature: float = 1.0,
    seed: int = 0,
    ops: Ops | None = None,
) -> Iterator[int]:
    """Yield ``length`` codes that follow those of ``begin``, each drawn by what the net says after all before it.

    Codes are drawn from the softmax of the scores divided by ``temperature``; with 0, always the most probable one.
    ``ops`` computes, by default the best backend. Raises UserError where ``params``, by name, lack one of the net, or
    one has another shape.
    """
    net, ops = made.net, ops or get_ops()
    check_params(net, params)
    ops.enter()
    states = {name: np.zeros(param.shape, np.float32) for name, param in net.params.items() if param.spec.by_rows}
    values = {name: ops.asarray(value) for name, value in {**params, **states}.items() if name in net.params}
    holders = {node.layer.name: node.params[-1] for node in net.nodes if set(node.params) & set(states)}
    ctx = Context(ops, Phase.kTest, Rows(0, 1, 1))
    rng = np.random.default_rng(seed)

    def step(code: int) -> Array:
        record = {made.reader: Records(np.full((1, 1), code, np.int64))}
        outputs, _ = forward(net, values, record, ctx, (made.scores, *holders))
        values.update({param: outputs[layer].state["state"] for layer, param in holders.items()})
        return ops.to_numpy(outputs[made.scores].feature).reshape(-1)

    for code in begin[:-1]:
        step(code)
    code = begin[-1]
    for _ in range(length):
        code = draw(step(code), temperature, rng)
        yield code


def draw(scores: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Return a code by softmax(scores / temperature), the one with the highest score where ``temperature`` is 0."""
    if temperature == 0:
        return int(scores.argmax())
    shares = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    sums = np.cumsum(shares)
    return min(int(np.searchsorted(sums, rng.random() * sums[-1], "right")), len(scores) - 1)
