"""Decides which recurrent layers carry their hidden state over to the next batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.job import LayerConf, Phase, RecurrentConf
from dsinga.layers.context import RecordInfo


def resolve_carry(
    confs: Sequence[LayerConf], phase: Phase, records: Mapping[str, RecordInfo], unrolled: bool = False
) -> list[LayerConf]:
    """Return the layers with ``carry`` set to true or false in each recurrent one.

    Where a job leaves ``carry`` out, the state is carried if each batch continues the texts of the batch before
    (``RecordInfo.continues``). Only training carries a state; other phases begin each batch with zeros. Raises JobError
    where a job sets ``carry`` but batches do not continue, or copies of the layer are computed one by one.
    """
    continuing = _continuing(confs, records)
    return [_set_carry(layer, phase, layer.name in continuing, unrolled) for layer in confs]


def _set_carry(layer: LayerConf, phase: Phase, continues: bool, unrolled: bool) -> LayerConf:
    recurrent = [(field, value) for field, value in vars(layer).items() if isinstance(value, RecurrentConf)]
    for field, conf in recurrent:
        training = bool(phase & Phase.kTrain)
        if conf.carry and training and (unrolled or not continues):
            reason = (
                "its net must be unrolled step by step"
                if unrolled
                else "only batches of kCharRNN continue the batch before, in a job with one worker group"
            )
            raise conf.error(f"layer {layer.name!r} cannot carry its state over: {reason}; leave carry out", "carry")
        possible = training and continues and not unrolled and not conf.bidirectional and not conf.initial_state
        carry = possible if conf.carry is None else conf.carry and training
        layer = layer.replace(**{field: conf.replace(carry=carry)})
    return layer


def _continuing(confs: Sequence[LayerConf], records: Mapping[str, RecordInfo]) -> set[str]:
    """Return the names of the layers that read, directly or not, records that continue from batch to batch."""
    followers: dict[str, list[str]] = {}
    for layer in confs:
        for source in layer.srclayers if layer.name not in records else ():
            followers.setdefault(source, []).append(layer.name)
    pending = [name for name, info in records.items() if info.continues]
    continuing: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in continuing:
            continuing.add(name)
            pending += followers.get(name, [])
    return continuing
