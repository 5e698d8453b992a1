"""Layers, one file per family. Importing this room registers every type that its files define."""

from dsinga.base.registry import load
from dsinga.layers.interface.context import Columns, Context, RecordInfo, Records, Rows
from dsinga.layers.interface.declarations import Connection, Cut, LabelFormat, Labels, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Layer, Output, Shape

load("layer")
