"""Layers, one file per family. Importing this room registers every type that the files define."""

from dsinga.layers import (
    activation,
    batchnorm,
    bridge,
    classfactored,
    connection,
    convolution,
    crf,
    dropout,
    dummy,
    elementwise,
    embedding,
    entity,
    hinge,
    image,
    innerproduct,
    input,
    label,
    layernorm,
    loss,
    lrn,
    onehot,
    output,
    pooling,
    rbm,
    recurrent,
    softmax,
    text,
)
from dsinga.layers.base import Connection, Layer, Output, ParamSpec, Shape
from dsinga.layers.context import Columns, Context, RecordInfo, Records, Rows
