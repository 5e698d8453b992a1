"""Layers, one file per family. Importing this room registers every type that its files define."""

from dsinga.layers.base import Connection, Layer, Output, ParamSpec, Shape
from dsinga.layers.context import Columns, Context, RecordInfo, Records, Rows
from dsinga.registry import load

load("layer")
