"""Layers, one file per family. Importing this room registers every type that the files define."""

from dsinga.layers import (
    activation,
    batchnorm,
    connection,
    convolution,
    dropout,
    dummy,
    image,
    innerproduct,
    input,
    label,
    loss,
    lrn,
    output,
    pooling,
    softmax,
)
from dsinga.layers.base import Context, Layer, Output, ParamSpec, RecordInfo, Records, Rows, Shape
