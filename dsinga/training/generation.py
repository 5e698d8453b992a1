"""Text generation: a net of one time step, with carried states, gets each code that it has drawn as its next input."""

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
    """A net that scores the code after each one that it reads, and the names of its input and its score layer."""

    net: NeuralNet
    reader: str
    scores: str


def generator(conf: NetConf, codes: int) -> Generator:
    """Return a generator, of one step and one row, for a net that reads texts of ``codes`` different codes.

    It has the layers of the training net below its softmax, not unrolled, with carried states in all recurrent layers.
    The reader is a kCharRNN, or the kRNNDummy of SINGA's sample.conf. Raises UserError where the net has neither a
    reader nor a softmax, or has a bidirectional layer.
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
    one_step_layers = [_one_step(layer, codes) for layer in layers if layer.name in below]
    info = RecordInfo((1,), 1, has_labels=False, continues=True, codes=codes)
    net = create_net(conf.replace(layer=one_step_layers, unroll_len=1), Phase.kTrain, {reader.name: info})
    return Generator(net, reader.name, top.srclayers[0])


def _below(name: str, layers: Mapping[str, LayerConf]) -> set[str]:
    """Return the names of the layers on which the layer ``name`` depends, with its own."""
    below, pending = set[str](), [name]
    while pending:
        name = pending.pop()
        if name in layers and name not in below:
            below.add(name)
            pending.extend(layers[name].srclayers)
    return below


def _one_step(layer: LayerConf, codes: int) -> LayerConf:
    """Return the configuration of ``layer`` for one step: not unrolled, reading codes, or carrying its state."""
    layer = layer.replace(unroll_len=None, unroll_conn_type=[], shift=[], include=[], exclude=[], per_step=False)
    if layer.type in READERS:
        return layer.replace(type=LayerType.kCharRNN, srclayers=[], char_rnn_conf=CharRNNConf(unroll_len=1))
    if layer.type is LayerType.kOneHot and not (layer.onehot_conf and layer.onehot_conf.vocab_size):
        return layer.replace(onehot_conf=OnehotConf(vocab_size=codes))  # as in SINGA's sample.conf
    for field, value in vars(layer).items():
        if isinstance(value, RecurrentConf):
            if value.bidirectional:
                raise value.error(f"layer {layer.name!r} is bidirectional: it cannot predict the next code", None)
            return layer.replace(**{field: value.replace(carry=True)})
    return layer


def generate(
    generator: Generator,
    params: Mapping[str, Array],
    begin: Sequence[int],
    length: int,
    temperature: float = 1.0,
    seed: int = 0,
    ops: Ops | None = None,
) -> Iterator[int]:
    """Yield ``length`` codes that continue ``begin``, each drawn by the scores of the net after all codes before it.

    Codes are drawn from the softmax of the scores divided by ``temperature``; with 0, always the most probable one.
    ``ops`` is the backend, None for the best one. Raises UserError where ``params`` lacks a param of the net, or has
    one of another shape.
    """
    net, ops = generator.net, ops or get_ops()
    check_params(net, params)
    ops.enter()
    states = {name: np.zeros(param.shape, np.float32) for name, param in net.params.items() if param.spec.by_rows}
    values = {name: ops.asarray(value) for name, value in {**params, **states}.items() if name in net.params}
    holders = {node.layer.name: node.params[-1] for node in net.nodes if set(node.params) & set(states)}
    ctx = Context(ops, Phase.kTest, Rows(0, 1, 1))
    rng = np.random.default_rng(seed)

    def step(code: int) -> Array:
        record = {generator.reader: Records(np.full((1, 1), code, np.int64))}
        outputs, _ = forward(net, values, record, ctx, (generator.scores, *holders))
        values.update({param: outputs[layer].state["state"] for layer, param in holders.items()})
        return ops.to_numpy(outputs[generator.scores].feature).reshape(-1)

    for code in begin[:-1]:
        step(code)
    code = begin[-1]
    for _ in range(length):
        code = draw(step(code), temperature, rng)
        yield code


def draw(scores: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draw a code from softmax(scores / temperature); with ``temperature`` 0, return the one with the highest score."""
    if temperature == 0:
        return int(scores.argmax())
    shares = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    sums = np.cumsum(shares)
    return min(int(np.searchsorted(sums, rng.random() * sums[-1], "right")), len(scores) - 1)
