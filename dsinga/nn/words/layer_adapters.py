"""What a layer's function does beyond giving settings: shapes that it needs, and sources in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dsinga.base.arguments import check_bool, check_range
from dsinga.base.registry import lookup
from dsinga.job import Phase
from dsinga.nn.writing.feature import Feature, batch_shape, row_shape
from dsinga.nn.writing.writer import LayerWriter, NetWriter

Values = Mapping[str, Any]  # the arguments of the function


def flatten_rows(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the fans of a dense layer, and that it is applied to each step of sequences."""
    rows = writer.rows(writer.source)
    inputs = rows[-1] if len(rows) == 2 else math.prod(rows)
    return {"per_step": True if len(rows) == 2 else None, "fans": {"weight": (inputs, values["units"])}}


def convolve_steps(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the padding and the fans of a convolution over steps."""
    inputs, kernel, padding = writer.rows(writer.sources[0])[-1], values["kernel_size"], values["padding"]
    if isinstance(padding, str) and padding not in ("valid", "same", "causal"):
        raise writer.fail(f'padding is "valid", "same", "causal" or a number of steps, not {padding!r}')
    if isinstance(padding, str):
        pad = {} if padding == "valid" else {padding: True}
    else:
        pad = {"pad": padding}
    fans = inputs // (values.get("groups") or 1) * kernel, values["filters"] * kernel
    return {**pad, "fans": {"weight": fans}}


def leave_out_zeros(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Write the layer that leaves out steps of the code 0, with ``mask_zero``, and return it as the source."""
    if not values["mask_zero"]:
        return {}
    ends = {"end": 0, "anywhere": True}
    return {"sources": [writer.extra("lengths", "kSequenceLength", writer.source, sequencelength_conf=ends)]}


def find_ends(writer: LayerWriter, feature: Feature, values: Values) -> Feature:
    """Return the feature of codes with the layer that says where sequences end, of an input with any number of steps.

    With ``mask_zero`` that layer is there; sequences of other inputs all have all steps.
    """
    if values.get("mask_zero"):
        return feature._replace(lengths=Feature(f"{writer.name}_lengths", row_shape(writer.source)))
    if not writer.source.any_length:
        return feature
    return feature._replace(lengths=writer.extra("lengths", "kSequenceLength", writer.source))


def last_step(writer: LayerWriter, feature: Feature, values: Values) -> Feature:
    """Write the layer that takes the last step (B, n) of a recurrent layer that is not to give all steps.

    Of both directions it takes the last step that each has computed. The lengths are those of the recurrent layer. A
    row that is a vector is one step.
    """
    check_bool(f"return_sequences of {writer.name}", values["return_sequences"])
    if values["return_sequences"] or len(writer.rows(writer.sources[0])) == 1:
        return feature
    pool = "ENDS" if values.get("bidirectional") else "LAST"
    return writer.extra("last", "kPooling1D", feature, *writer.sources[1:], pooling1d_conf={"pool": pool})


def pixels_first(writer: LayerWriter) -> list[Feature]:
    """Return the source with its channels last inside, too, after a layer that moves them: images of such records."""
    source = writer.source._replace(flat=False)
    axes = len(source.shape or ())
    if not source.channels_last or axes not in (3, 4):
        return [writer.source]
    return [writer.extra("pixels", "kPermute", source, permute_conf={"dims": [*range(2, axes + 1), 1]})]


def numbers_of_pixels(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the source of a kReshape, whose numbers are in the order of the records'."""
    return {"sources": pixels_first(writer)}


def permuted_axes(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the order of axes inside, where the records and so ``dims`` have the channels last."""
    dims = values["dims"]
    if not writer.source.channels_last or len(row_shape(writer.source) or ()) != len(dims) or len(dims) not in (3, 4):
        return {}
    inside = [axis % len(dims) + 1 for axis in dims]
    return {"dims": [*inside[-1:], *inside[:-1]]}


def channels_back(writer: LayerWriter, feature: Feature) -> Feature:
    """Write the layer that puts the channels of images, which are last in the feature, first."""
    axes = len(row_shape(feature) or ())
    return writer.extra("channels", "kPermute", feature, permute_conf={"dims": [axes, *range(1, axes)]})


def reshape_images(writer: LayerWriter, feature: Feature, values: Values) -> Feature:
    """Write the layer that puts the channels first, where the records and so ``target_shape`` have them last."""
    axes = len(values["target_shape"]) if isinstance(values["target_shape"], (list, tuple)) else 1
    return channels_back(writer, feature) if writer.source.channels_last and axes in (3, 4) else feature


def recurrent(writer: LayerWriter, values: Values, gates: int) -> dict[str, Any]:
    """Return the fans of a recurrent layer, which Keras counts for all gates together; raise UserError for vectors."""
    rows = writer.rows(writer.sources[0])
    if len(rows) == 1 and not values.get("carry"):  # with it a step at a time, as an agent acts
        raise writer.fail(
            f"takes sequences (batch, steps, n), but gets {batch_shape(rows)}; give a recurrent layer below "
            "return_sequences=True, or put nn.Embedding between, if these are codes"
        )
    inputs, units = rows[-1], values["units"]
    fans = {"hx": (inputs, gates * units), "hh": (units, gates * units)}
    check_range(f"dropout of {writer.name}", share := values["dropout"], 0, 1)
    if not share:
        return {"fans": fans}
    source, *lengths = writer.sources
    conf = {"dropout_ratio": share, "unit": "kFeature"}
    return {"fans": fans, "sources": [writer.extra("dropout", "kDropout", source, dropout_conf=conf), *lengths]}


def attend(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of an attention in the order of a job, and the fans of its score."""
    query, value, key, lengths = query_value_key(writer)
    sources = [query, value] if key is None else [query, key, value]
    return {"sources": [*sources, *lengths], "fans": {"score": (writer.rows(query)[-1], 1)}}


def query_value_key(writer: LayerWriter) -> tuple[Feature, Feature, Feature | None, list[Feature]]:
    """Return query, value, key, which may be None, and a list of the source that gives lengths, if there is one."""
    sources = list(writer.sources)
    last_is_lengths = len(sources) == 4 or (len(sources) == 3 and len(writer.rows(sources[-1])) == 1)
    lengths = [sources.pop()] if last_is_lengths else []
    if len(sources) not in (2, 3):
        raise writer.fail(
            f"takes [query, value] or [query, value, key], and a source that gives lengths, not {len(writer.sources)} "
            "sources; for self-attention give the same feature twice"
        )
    query, value, *key = sources
    labelled = next(iter(writer.net.inputs), None)  # the first input has the labels
    if key and not lengths and key[0].layer == labelled and labelled not in (query.layer, value.layer):
        raise writer.fail(
            f"could take the records of {labelled!r} as the key, or their labels as lengths; for lengths give "
            f"[query, value, value, {labelled}], for the key put nn.Dense between"
        )
    return query, value, key[0] if key else None, lengths


def scores_and_labels(writer: LayerWriter, values: Values, optional: int = 0) -> dict[str, Any]:
    """Return the sources of a loss: the scores before a softmax, what has the labels, and at most ``optional`` more."""
    if not 2 <= len(writer.sources) <= 2 + optional:
        raise writer.fail(
            f"takes scores and labels, not {len(writer.sources)} sources: nn.{writer.builder.kind}()(scores, labels=x) "
            "takes those of the input x"
        )
    scores, *others = writer.sources
    return {"sources": [take_before(writer.net, scores, "softmax"), *others]}


def scores_of_points(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a loss of the classes of points, and the scale that makes a sum over points their mean."""
    fields = scores_and_labels(writer, values)
    return {**fields, "scale": values.get("scale", 1.0) / math.prod(writer.rows(fields["sources"][0])[1:])}


def overlap_of_regions(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a Dice loss: the scores before a final sigmoid, and what has the labels."""
    scores, *others = scores_and_labels(writer, values)["sources"]
    return {"sources": [take_before(writer.net, scores, "sigmoid"), *others]}


def softmax_of_scores(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a softmax loss, and that it is applied to each step of sequences."""
    sources = scores_and_labels(writer, values)["sources"]
    return {"sources": sources, "per_step": True if len(row_shape(sources[0]) or ()) == 2 else None}


def compare(writer: LayerWriter, values: Values, activation: str | None = None) -> dict[str, Any]:
    """Return the sources of a loss that compares outputs, before an activation, with labels or another feature."""
    if len(writer.sources) not in (2, 3):
        raise writer.fail(f"takes outputs and targets, not {len(writer.sources)} sources")
    outputs, target, *weights = writer.sources
    outputs = outputs if activation is None else take_before(writer.net, outputs, activation)
    shape, expected = row_shape(target), row_shape(outputs)
    if values.get("weighted"):  # the layer itself checks the channels of fields
        expected = None
    if shape is not None and expected is not None and math.prod(shape) != math.prod(expected):
        has_weights = len(shape) > 1 and shape == (expected[0] + 1, *expected[1:])
        or_weighted = ", or the loss weighted=True if its last channel has the weights of points" if has_weights else ""
        raise writer.fail(
            f"compares {outputs.layer!r}, {math.prod(expected)} numbers a row, with {target.layer!r}, "
            f"{math.prod(shape)}; give the last layer as many outputs as the target has{or_weighted}"
        )
    if shape is not None and expected is not None and shape != expected and shape == (*expected[1:], expected[0]):
        raise writer.fail(
            f"compares {outputs.layer!r}, {expected}, with {target.layer!r}, {shape}, whose channels are last; "
            'give y as an array, and begin with nn.Input(..., data_format="channels_last")'
        )
    return {"sources": [outputs, target, *weights]}


def compare_mean(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return what :func:`compare` does, and the scale that makes the sum over the numbers of a row their mean."""
    fields = compare(writer, values)
    return {**fields, "scale": values.get("scale", 1.0) / math.prod(writer.rows(fields["sources"][0]))}


def compare_forecast(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a loss of several numbers for each number of the target, and the scale of their mean.

    The sum over the numbers of the target becomes their mean. The layer itself checks the sizes.
    """
    if len(writer.sources) not in (2, 3):
        raise writer.fail(f"takes outputs and targets, not {len(writer.sources)} sources")
    cls: Any = lookup("layer", f"k{writer.builder.kind}")
    numbers = math.prod(writer.rows(writer.sources[0])) / max(1, cls.forecast_form(values).count)
    return {"sources": [*writer.sources], "scale": values.get("scale", 1.0) / numbers}


def take_before(net: NetWriter, feature: Feature, activation: str) -> Feature:
    """Return the feature before a final softmax or sigmoid, which the loss computes itself; it stays for predictions.

    The activation's layer is left out of training where no other layer takes it.
    """
    before = feature.before
    if before is None:
        return feature
    conf = next(conf for conf in net.layers if conf.name == feature.layer)
    function = "softmax" if conf.type_name == "kSoftmax" else "sigmoid"
    if function != activation:
        return feature
    taken = any(feature.layer in layer_conf.srclayers for layer_conf in net.layers)
    if not taken and not conf.include and not conf.exclude:
        conf.exclude = [Phase.kTrain]
    return before
