"""Which recurrent layers carry their state over to the next batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.job import LayerConf, Phase, RecurrentConf
from dsinga.layers.context import RecordInfo


def settle_carry(
    confs: Sequence[LayerConf], phase: Phase, records: Mapping[str, RecordInfo], unrolled: bool = False
) -> list[LayerConf]:
    """Return the layers, with ``carry`` true or false in each recurrent one.

    Where a job leaves it open, the state is carried if the batches that the layer gets go on where those before ended
    (``RecordInfo.continues``). In other phases than training no state is carried: they begin with zeros. Raises
    JobError for a job that wants it carried where batches do not go on, or copies of the layer are computed one by one.
    """
    named = {layer.name: layer for layer in confs}
    return [_settle(layer, phase, _continues(layer, named, records, set()), unrolled) for layer in confs]


def _settle(layer: LayerConf, phase: Phase, continues: bool, unrolled: bool) -> LayerConf:
    found = [(field, value) for field, value in vars(layer).items() if isinstance(value, RecurrentConf)]
    for field, conf in found:
        training = bool(phase & Phase.kTrain)
        if conf.carry and training and (unrolled or not continues):
            why = (
                "its net must be unrolled step by step"
                if unrolled
                else "only the batches of kCharRNN go on where the one before ended, in a job with one worker group"
            )
            raise conf.error(f"layer {layer.name!r} cannot carry its state over: {why}; leave carry out", "carry")
        possible = training and continues and not unrolled and not conf.bidirectional
        carry = possible if conf.carry is None else conf.carry and training
        layer = layer.replace(**{field: conf.replace(carry=carry)})
    return layer


def _continues(
    layer: LayerConf, named: Mapping[str, LayerConf], records: Mapping[str, RecordInfo], seen: set[str]
) -> bool:
    """Whether a layer reads, through others, records that go on from batch to batch."""
    seen.add(layer.name)
    if layer.name in records:
        return records[layer.name].continues
    return any(_continues(named[name], named, records, seen) for name in layer.srclayers if name not in seen)
