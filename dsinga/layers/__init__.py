"""Layers, one file per family. Importing this room registers every type that its files define."""

from dsinga.layers.base import Layer, Output, Shape
from dsinga.layers.context import Columns, Context, RecordInfo, Records, Rows
from dsinga.layers.declarations import Connection, Cut, LabelFormat, Labels, ParamSpec, SourceKind
from dsinga.registry import load

load("layer")
