"""What a layer's function does beyond giving settings: shapes that it needs, sources in order, windows of Keras."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dsinga.arguments import check_bool
from dsinga.job import Phase
from dsinga.nn.feature import Feature, batch_shape, row_shape
from dsinga.nn.forms import Size
from dsinga.nn.writer import LayerWriter, NetWriter

Values = Mapping[str, Any]  # the arguments of the function


def flatten_rows(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the fans of a dense layer, and that it is applied to each step of sequences."""
    rows = writer.rows(writer.source)
    inputs = rows[-1] if len(rows) == 2 else math.prod(rows)
    return {"per_step": True if len(rows) == 2 else None, "fans": {"weight": (inputs, values["units"])}}


def require_images(writer: LayerWriter, values: Values) -> None:
    """Raise UserError where the source gives no images (B, C, H, W)."""
    image(writer)


def require_channels_first(writer: LayerWriter, values: Values) -> None:
    """Raise UserError where the records are images with the channels last."""
    refuse_channels_last(writer)


def convolve(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the window and the fans of a convolution of images."""
    channels, height, width = image(writer)
    rows, columns = pair(values["kernel_size"])
    if values["padding"] == "valid" and (rows > height or columns > width):
        hint = '; if the channels are last, begin with nn.Input(..., data_format="channels_last")' if width <= 4 else ""
        size = f"{channels} channels of {height} x {width}"
        raise writer.fail(f"a kernel of {rows} x {columns} is larger than the images, {size}{hint}")
    fans = channels * rows * columns, values["filters"] * rows * columns
    return window(writer, values["kernel_size"], values["strides"], values["padding"], 1) | {"fans": {"weight": fans}}


def pool_images(writer: LayerWriter, values: Values, pool: str) -> dict[str, Any]:
    """Return the window of a pooling of images; a mean leaves padding out, as in Keras."""
    refuse_channels_last(writer)
    steps = values["pool_size"] if values["strides"] is None else values["strides"]
    fields = window(writer, values["pool_size"], steps, values["padding"], 2)
    is_padded = "same" in fields or any(name.startswith("pad") for name in fields)
    return {**fields, "count_include_pad": False} if pool == "AVG" and is_padded else fields


def convolve_steps(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the padding and the fans of a convolution over steps."""
    inputs, kernel, padding = writer.rows(writer.sources[0])[-1], values["kernel_size"], values["padding"]
    if isinstance(padding, str) and padding not in ("valid", "same"):
        raise writer.fail(f'padding is "valid", "same" or a number of steps, not {padding!r}')
    pad = {"same": padding == "same"} if isinstance(padding, str) else {"pad": padding}
    return {**pad, "fans": {"weight": (inputs * kernel, values["filters"] * kernel)}}


def last_step(writer: LayerWriter, feature: Feature, values: Values) -> Feature:
    """Write the layer that takes the last step (B, n) of a recurrent layer that is not to give all steps.

    Of both directions it takes the last step that each has computed. The lengths are those of the recurrent layer.
    """
    check_bool(f"return_sequences of {writer.name}", values["return_sequences"])
    if values["return_sequences"]:
        return feature
    pool = "ENDS" if values.get("bidirectional") else "LAST"
    return writer.extra("last", "kPooling1D", feature, *writer.sources[1:], pooling1d_conf={"pool": pool})


def recurrent(writer: LayerWriter, values: Values, gates: int) -> dict[str, Any]:
    """Return the fans of a recurrent layer, which Keras counts for all gates together; raise UserError for vectors."""
    rows = writer.rows(writer.sources[0])
    if len(rows) == 1 and not values.get("carry"):  # with it a step at a time, as an agent acts
        raise writer.fail(
            f"takes sequences (batch, steps, n), but gets {batch_shape(rows)}; leave return_sequences=False out of a "
            "recurrent layer below, or put nn.Embedding between, if these are codes"
        )
    inputs, units = rows[-1], values["units"]
    return {"fans": {"hx": (inputs, gates * units), "hh": (units, gates * units)}}


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
    if shape is not None and expected is not None and math.prod(shape) != math.prod(expected):
        raise writer.fail(
            f"compares {outputs.layer!r}, {math.prod(expected)} numbers a row, with {target.layer!r}, "
            f"{math.prod(shape)}; give the last layer as many outputs as the target has"
        )
    return {"sources": [outputs, target, *weights]}


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


def image(writer: LayerWriter) -> tuple[int, int, int]:
    """Return (C, H, W) of the source; raise UserError where it gives no images."""
    rows = writer.rows(writer.source)
    if len(rows) not in (2, 3):
        raise writer.fail(
            f"takes images (batch, channels, height, width), but gets {batch_shape(rows)}; give the input the shape of "
            "an image, as in nn.Input(shape=(1, 28, 28))"
        )
    refuse_channels_last(writer)
    channels, height, width = (1, *rows) if len(rows) == 2 else rows
    return channels, height, width


def refuse_channels_last(writer: LayerWriter) -> None:
    """Raise UserError where the records of an input look like images (H, W, C): squares, then 1, 3 or 4 channels.

    Read as channels first they would train without a fault, as H channels of narrow images.
    """
    rows = row_shape(writer.source)
    if rows is None or len(rows) != 3 or not (writer.source.is_input or writer.source.layer in writer.net.inputs):
        return
    if rows[0] == rows[1] > 4 and rows[2] in (1, 3, 4):
        raise writer.fail(
            f"takes images (batch, channels, height, width), but gets {batch_shape(rows)}, whose channels are last; "
            f'begin with nn.Input({rows}, data_format="channels_last")'
        )


def window(writer: LayerWriter, size: Size, strides: Size, padding: str | Size, default_stride: int) -> dict[str, Any]:
    """Return the fields of a window; Keras's pairs are (rows, columns), which a job calls y and x."""
    fields: dict[str, Any] = {**sides("kernel", size)}
    if pair(strides) != (default_stride, default_stride):
        fields |= sides("stride", strides)
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise writer.fail(f'padding is "valid", "same", a number of pixels or a pair, not {padding!r}')
        if padding == "valid":
            return fields
        if pair(strides) != (1, 1) or any(side % 2 == 0 for side in pair(size)):
            return {**fields, "same": True}
        padding = (pair(size)[0] // 2, pair(size)[1] // 2)  # as much on both sides, as SINGA's own nets have it
    return fields if pair(padding) == (0, 0) else fields | sides("pad", padding)


def sides(field: str, size: Size) -> dict[str, int]:
    """Return a field of both directions, or one of each where they differ."""
    rows, columns = pair(size)
    return {field: rows} if rows == columns else {f"{field}_y": rows, f"{field}_x": columns}


def pair(size: Size) -> tuple[int, int]:
    """Return (rows, columns)."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows, columns
