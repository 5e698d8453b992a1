"""Layers, one file per family. Importing this room registers every type that the files define."""

from dsinga.layers import (
    activation,
    attention,
    batchnorm,
    bridge,
    class_loss,
    combine,
    composed_metrics,
    connection,
    convolution,
    convolution1d,
    embedding,
    image,
    innerproduct,
    input,
    label,
    loss,
    normalisation,
    output,
    policy_loss,
    pooling1d,
    rbm,
    recurrent,
    steps,
    tagging,
    text,
    value_loss,
    vocabulary_loss,
    vtrace,
)
from dsinga.layers.base import Layer, Output, Shape
from dsinga.layers.context import Columns, Context, RecordInfo, Records, Rows
from dsinga.layers.declarations import Connection, Cut, LabelFormat, Labels, ParamSpec, SourceKind
