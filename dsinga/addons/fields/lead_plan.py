"""Builds the net for training on several leads: one copy per lead, fed with earlier predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dsinga.job import LayerConf, LayerType, NetConf, PaddingMode, ParamConf, Phase
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.layer import Shape
from dsinga.layers.losses.point_classes import PointClasses
from dsinga.net.build import with_followers
from dsinga.net.dataflow import needs_gradient
from dsinga.net.layer_classes import forecast_form, layer_class
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node

MODES = {
    "zero": PaddingMode.kZero,
    "edge": PaddingMode.kEdge,
    "reflect": PaddingMode.kReflect,
    "periodic": PaddingMode.kPeriodic,
}


class LeadChannels(NamedTuple):
    """Where each channel in the record of one lead comes from, in order.

    Attributes:
        source: 0 for the record as read, n for the prediction n leads earlier.
        channel: the number of the channel in that source.
        mask: the channel of the record as read that is 0 where a point is masked, -1 for no mask.
        fill: the number at masked points.
    """

    source: tuple[int, ...]
    channel: tuple[int, ...]
    mask: tuple[int, ...]
    fill: tuple[float, ...]


@dataclass(frozen=True)
class LeadPlan:
    """How the input records of several leads are made from one stored record.

    Attributes:
        shape: the shape (C, *space) of one lead's record.
        label_shape: the shape (C', *space) of one lead's labels, with a last channel of weights if ``weighted``.
        records: the channels of each lead.
        before, after: points of context around a prediction, along each axis of space.
        modes: how context beyond a prediction is filled, along each axis: "zero", "edge", "reflect", "periodic".
        weighted: whether labels have a channel of weights, the same for all leads.
        starts: the training step at which each lead joins the loss.
    """

    shape: Shape
    label_shape: Shape
    records: tuple[LeadChannels, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    modes: tuple[str, ...]
    weighted: bool
    weights: tuple[float, ...]
    starts: tuple[int, ...]

    @property
    def leads(self) -> int:
        """The number of leads (steps ahead) that are trained."""
        return len(self.records)

    @property
    def channels(self) -> int:
        """The channels of a prediction."""
        return self.label_shape[0] - self.weighted

    @property
    def is_padded(self) -> bool:
        """Whether a record reads more points around it than the net predicts."""
        return any((*self.before, *self.after))

    def shares(self, leads: int) -> tuple[float, ...]:
        """Return the share of each of the first leads in the loss; shares add up to 1."""
        total = sum(self.weights[:leads])
        return tuple(weight / total for weight in self.weights[:leads])

    def changes(self) -> tuple[tuple[int, int], ...]:
        """Return pairs (step, leads), sorted by step: how many leads are trained starting at each step."""
        return tuple((step, sum(start <= step for start in self.starts)) for step in sorted(set(self.starts)))

    def create_nets(
        self, conf: NetConf, inputs: Sequence[LayerConf], phase: Phase, create: Callable[[NetConf], NeuralNet]
    ) -> NeuralNet:
        """Return the net of a phase with one copy per lead, and nets of fewer leads for early training."""
        name, layers = inputs[0].name, conf.layer
        if len(inputs) > 1:
            raise inputs[1].error(
                f"layers {name!r} and {inputs[1].name!r} both read windows of several leads; predictions are fed back "
                "to one input layer, so give the others leads=1"
            )
        followers = with_followers({name}, layers) - {name}
        trains = bool(phase & Phase.kTrain)

        def of_leads(leads: int) -> NeuralNet:
            is_marked = leads > 1 and conf.recompute > 1 and trains
            copies = unroll_leads(layers, followers, name, self, leads)
            net = create(conf.replace(layer=copies, recompute=0 if is_marked else conf.recompute))
            if is_marked:
                mark_leads(net.nodes, needs_gradient(net.nodes))
            return net

        if prediction := prediction_of([layer for layer in layers if layer.name in followers]):
            layer = of_leads(1).layer(prediction)
            check_prediction(self, layer.shape, layer.conf)
        net, changes = of_leads(self.leads), self.changes() if trains else ()
        nets = [*((step, of_leads(leads)) for step, leads in changes[:-1]), *((step, net) for step, _ in changes[-1:])]
        return replace(net, by_step=tuple(nets)) if len(nets) > 1 else net


def lead_name(lead: int, layer: str, of_record: bool = False) -> str:
    """Return the name of a layer's copy for a lead (from 1); lead 1 keeps the name unless ``of_record``."""
    return layer if lead == 1 and not of_record else f"lead{lead}#{layer}"


def unroll_leads(
    layers: Sequence[LayerConf], followers: set[str], name: str, plan: LeadPlan, leads: int
) -> list[LayerConf]:
    """Copy the layers of a phase that follow layer ``name``, once per lead; return all layers.

    Layer x is copied as ``leadn#x`` for lead n > 1; lead 1 keeps the name x. The layer ``leadn#name`` gives a lead's
    record: inputs known in advance, and earlier predictions with their context. ``leadn#labels(name)`` gives its
    labels.

    If no layer uses labels, only the first lead is computed.
    """
    copied = [layer for layer in layers if layer.name in followers]
    prediction = prediction_of(copied)
    shares = plan.shares(leads) if prediction else (1.0,)
    passed_on = {name, *(layer.name for layer in copied if layer_class(layer).new_labels is None)}
    (data,) = (layer for layer in layers if layer.name == name)
    unrolled = [
        _whole_record(layer) if layer.name == name else layer for layer in layers if layer.name not in followers
    ]
    for number, share in enumerate(shares):
        fed = [lead_name(number - back, prediction) for back in range(number)]
        unrolled += _record_layers(data, plan, number, fed, bool(prediction))
        for layer in copied:
            copy = _copy(layer, number + 1, followers, passed_on, name)
            unrolled.append(_scaled(copy, share) if layer_class(layer).is_loss and len(shares) > 1 else copy)
    return unrolled


def prediction_of(layers: Sequence[LayerConf]) -> str:
    """Return the layer that losses, or else metrics, compare with labels; "" if none."""
    compared = list(filter(_compares, layers))
    losses = [layer for layer in compared if layer_class(layer).is_loss] or compared
    for loss in losses:
        form = forecast_form(loss)
        if form is not None or issubclass(layer_class(loss), PointClasses):
            numbers = "scores of classes" if form is None else f"{form.count} numbers along {form.dim!r}"
            remedy = "" if form is None else "train all leads at once (direct=True of windows), or "
            raise loss.error(
                f"layer {loss.name!r} takes {numbers} for each number of a target, and training on several leads feeds "
                f"one number back; {remedy}train one lead as long as is needed"
            )
    names = list(dict.fromkeys(layer.srclayers[0] for layer in losses))
    if len(names) > 1:
        raise losses[1].error(
            f"losses compare {' and '.join(map(repr, names))} with labels; training on several leads feeds back one "
            "layer, so give all losses the same"
        )
    return names[0] if names else ""


def check_prediction(plan: LeadPlan, shape: Shape, layer: LayerConf) -> None:
    """Raise JobError unless a fed-back layer has the channels and points of the targets."""
    expected = (plan.channels, *plan.label_shape[1:])
    if shape[1:] != expected:
        raise layer.error(
            f"layer {layer.name!r} gives {shape_text(shape[1:])} for a lead, but its targets are "
            f"{shape_text(expected)}; a prediction that is fed back has the channels and points of the targets"
        )


def _compares(layer: LayerConf) -> bool:
    cls = layer_class(layer)
    return bool(layer.srclayers) and (cls.is_loss or bool(cls.labels.source))


def _whole_record(layer: LayerConf) -> LayerConf:
    return layer if layer.store_conf is None else layer.replace(store_conf=layer.store_conf.replace(shape=[]))


def _record_layers(
    data: LayerConf, plan: LeadPlan, number: int, predictions: Sequence[str], labelled: bool
) -> list[LayerConf]:
    """Create the layers that give a lead's record and labels, and pad earlier predictions."""
    record, common = plan.records[number], {"partition_dim": data.partition_dim, "partition_grid": data.partition_grid}
    used, layers, sources = sorted({source for source in record.source if source}), [], [data.name]
    for back in used:
        prediction = predictions[back - 1]
        if plan.is_padded:
            padded = lead_name(number + 1, f"{data.name} {back} before")
            modes = [MODES[mode] for mode in plan.modes]
            settings = {"before": plan.before, "after": plan.after, "mode": modes}
            layers.append(
                LayerConf(
                    name=padded,
                    type=LayerType.kPadding,
                    srclayers=[prediction],
                    copy_number=number + 1,
                    padding_conf={field: list(values) for field, values in settings.items()},
                    **common,
                )
            )
            prediction = padded
        sources.append(prediction)
    numbers = {back: place for place, back in enumerate([0, *used])}
    conf = {
        "source": [numbers[source] for source in record.source],
        "channel": list(record.channel),
        "mask": list(record.mask),
        "fill": list(record.fill),
    } | _normalisation(data)
    name = lead_name(number + 1, data.name, of_record=True)
    kind = LayerType.kLeadRecord
    layers.append(
        LayerConf(name=name, type=kind, srclayers=sources, copy_number=number + 1, leadrecord_conf=conf, **common)
    )
    if labelled:
        layers.append(
            LayerConf(
                name=_labels_name(number + 1, data.name),
                type=LayerType.kLabel,
                srclayers=[data.name],
                copy_number=number + 1,
                label_conf={"first": number * plan.channels, "count": plan.channels, "weighted": plan.weighted},
                **common,
            )
        )
    return layers


def _normalisation(data: LayerConf) -> dict[str, float]:
    """Return the mean and std for the records of an input layer."""
    store = data.store_conf
    if store is None:
        return {}
    if store.mean_file or store.std_file:
        raise data.error(
            f"layer {data.name!r} normalises records by mean_file or std_file, which do not fit predictions that are "
            "fed back; give the numbers to kNormalization (nn.Normalization) instead"
        )
    found = {"mean": store.mean_value, "std": store.std_value}
    return {name: value for name, value in found.items() if value is not None}


def _labels_name(lead: int, data: str) -> str:
    return lead_name(lead, f"labels({data})", of_record=True)


def _copy(layer: LayerConf, lead: int, followers: set[str], passed_on: set[str], data: str) -> LayerConf:
    """Copy a layer for a lead, sharing the layer's params."""
    cls, labels = layer_class(layer), _labels_name(lead, data)
    names = {name: lead_name(lead, name) for name in followers} | {data: lead_name(lead, data, of_record=True)}
    return layer.replace(
        name=names[layer.name],
        srclayers=[
            labels if k == cls.labels.source and source in passed_on else names.get(source, source)
            for k, source in enumerate(layer.srclayers)
        ],
        param=[_copy_param(param, lead) for param in layer.param],
        copy_number=lead,
    )


def _copy_param(param: ParamConf, lead: int) -> ParamConf:
    """Return the param settings with which a layer's copy shares the param of lead 1."""
    if lead == 1 or not param.name or param.name == param.share_from:
        return param
    return param.replace(name=lead_name(lead, param.name), share_from=param.share_from or param.name)


def _scaled(layer: LayerConf, share: float) -> LayerConf:
    settings = layer_class(layer).Conf
    if settings is None or not hasattr(settings, "scale"):
        raise layer.error(
            f"layer {layer.name!r}: {layer.type_name} has no factor (scale) by which the losses of several leads could "
            "be weighted; use a loss that has, such as kEuclideanLoss"
        )
    conf = layer.settings_of(settings)
    return layer.replace(**{settings.field: conf.replace(scale=conf.scale * share)})


def mark_leads(nodes: Sequence[Node], needed: Sequence[bool]) -> None:
    """Let layers of all leads but the last be recomputed in the backward pass; only predictions stay in memory."""
    leads = [node.layer.conf.copy_number or 0 for node in nodes]
    kept = {source for node, lead in zip(nodes, leads, strict=True) for source in node.sources if leads[source] != lead}
    kept |= {source for position in kept if nodes[position].layer.part_shapes for source in nodes[position].sources}
    for position, (node, lead) in enumerate(zip(nodes, leads, strict=True)):
        if needed[position] and 0 < lead < max(leads) and position not in kept:
            node.layer.conf = node.layer.conf.replace(recompute=True)
