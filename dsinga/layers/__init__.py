"""All layer types of job files, each with its forward and backward pass: one file per family."""

from dsinga.layers.interface.context import Columns, Context, RecordInfo, Records, Rows
from dsinga.layers.interface.declarations import Connection, Cut, Keeps, LabelFormat, Labels, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Layer, Output, Shape
