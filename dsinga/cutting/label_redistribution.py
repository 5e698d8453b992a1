"""Moves labels to the workers that need them: along with a feature, or over bridges as a feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsinga.cutting.bridges import FeatureAsLabels, LabelsAsFeature
from dsinga.cutting.partitioned import COPIED, FEATURES, ROWS, LayerCut, Place, cut_regions
from dsinga.cutting.redistribution import GraphBuilder, NodeOutput, ShardedFeature, Sharding
from dsinga.cutting.region_redistribution import redistribute_any
from dsinga.job import LayerConf, LayerType
from dsinga.layers.connection import Concate, SliceLayer
from dsinga.layers.interface.context import Rows
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.layers.interface.region import Region
from dsinga.layers.records.label import Label
from dsinga.net.dataflow import WHOLE_FEATURE, Edge
from dsinga.net.labels import labels_shape, makes_labels
from dsinga.net.neuralnet import NeuralNet


class LabelRedistribution:
    """Finds or moves the labels of each layer while a net is cut; ``features`` has what is placed so far.

    Labels come from a producer: an input layer, a kSlice or kConcate layer of rows, or a layer with its own method for
    labels. All other layers pass on the labels of their first source that has some.
    """

    def __init__(
        self, net: NeuralNet, graph: GraphBuilder, features: Mapping[Edge, ShardedFeature], cuts: Mapping[str, LayerCut]
    ):
        self._net, self._graph, self._features, self._cuts = net, graph, features, cuts
        self._as_feature: dict[Edge, ShardedFeature] = {}  # labels as features, by producer
        self._moved: dict[tuple[Edge, Sharding], Mapping[int, NodeOutput]] = {}  # the same, at their destinations
        self._cut_labels = _find_cut_labels(net, cuts, self._producer)
        self._as_labels: dict[tuple[Edge, Sharding], Mapping[int, NodeOutput]] = {}  # the same, as labels again

    def redistribute(self, edge: Edge, target: Sharding) -> Mapping[int, NodeOutput]:
        """Return each worker's node that has the labels of ``edge``; add layers if labels must move."""
        producer = self._producer(edge) or Edge(edge.node)
        layer = self._net.nodes[producer.node].layer
        if producer.node in self._cut_labels:
            outputs = self._features[producer].outputs
            return {location: NodeOutput(output.node) for location, output in outputs.items()}
        if target.dim >= FEATURES:
            target = Sharding(COPIED, target.locations)
        if not moves_rows(layer):
            feature = as_labels(self._features.get(producer) or self._features[Edge(producer.node, 0)])
            if feature.satisfies(target):
                return {location: NodeOutput(output.node) for location, output in feature.outputs.items()}
        if (producer, target) not in self._as_labels:
            outputs, feature = self._move(producer, target), self._as_feature[producer]
            conf = label_conf(f"{feature.name}:{target}", feature.name)
            self._as_labels[producer, target] = self._add(FeatureAsLabels(conf, [feature.shape]), layer, outputs)
        return self._as_labels[producer, target]

    def region_of(self, position: int, part: int) -> Region | None:
        """Return the points of labels that a part of an input layer gives; None for all."""
        regions = self._cut_labels.get(position)
        return regions[part] if regions else None

    def _producer(self, edge: Edge) -> Edge | None:
        node = self._net.nodes[edge.node]
        if moves_rows(node.layer) and not (node.layer.part_shapes and edge.part == WHOLE_FEATURE):
            return edge._replace(labels=False)
        if makes_labels(node.layer):
            return Edge(edge.node)
        producers = map(self._producer, self._net.stages[edge.node].edges)
        return next((producer for producer in producers if producer is not None), None)

    def _move(self, producer: Edge, target: Sharding) -> Mapping[int, NodeOutput]:
        """Move the labels of ``producer`` to the workers as a feature; return each worker's node output."""
        if producer not in self._as_feature:
            layer = self._net.nodes[producer.node].layer
            self._as_feature[producer] = (
                self._slice_or_join(producer, layer) if moves_rows(layer) else self._extract(producer, layer)
            )
        if (producer, target) not in self._moved:
            feature = self._as_feature[producer]
            self._moved[producer, target] = redistribute_any(self._graph, feature, target, str(target))
        return self._moved[producer, target]

    def _extract(self, producer: Edge, layer: Layer) -> ShardedFeature:
        feature = as_labels(self._features.get(producer) or self._features[Edge(producer.node, 0)])
        conf = label_conf(f"labels({layer.name})", layer.name)
        labels_layer = LabelsAsFeature(conf, [(layer.shape[0], *layer.label_format.shape)])
        outputs = self._add(labels_layer, layer, feature.outputs)
        return ShardedFeature(conf.name, labels_layer.shape, feature.dim, outputs)

    def _slice_or_join(self, producer: Edge, layer: Layer) -> ShardedFeature:
        """Add a layer that slices or joins labels in the way that ``layer`` slices or joins rows."""
        location = self._cuts[layer.name].location
        sources = [self._producer(edge) for edge in self._net.stages[producer.node].edges]
        if None in sources:
            raise layer.fail(
                "a later layer takes its labels, but not all of its sources have labels", field="srclayers"
            )
        target = Sharding(COPIED, (location,))
        outputs = [self._move(source, target)[location] for source in sources if source is not None]
        shapes = [self._as_feature[source].shape for source in sources if source is not None]
        conf, shape = label_conf(f"labels({layer.name})", layer.name), (layer.shape[0], *shapes[0][1:])
        label_layer: Layer
        if isinstance(layer, SliceLayer):
            conf.name = f"labels({layer.name}.{producer.part})"
            label_layer = SliceLayer.of(conf, shapes[0], ROWS, layer.bounds)
            shape = (layer.part_shapes[producer.part][0], *shape[1:])
        else:
            label_layer = Concate(conf, shapes)
        rows = Rows(0, layer.shape[0], layer.shape[0])
        node = self._graph.add(label_layer, Place(location, layer.name), outputs, rows=rows)
        return ShardedFeature(conf.name, shape, COPIED, {location: NodeOutput(node, producer.part)})

    def _add(self, connection: Layer, layer: Layer, outputs: Mapping[int, NodeOutput]) -> Mapping[int, NodeOutput]:
        added = {}
        for location, source in outputs.items():
            rows = self._graph.nodes[source.node].rows
            assert rows is not None
            node = self._graph.add(connection, Place(location, layer.name), [source], rows=rows)
            added[location] = NodeOutput(node)
        return added


def _find_cut_labels(
    net: NeuralNet, cuts: Mapping[str, LayerCut], producer_of: Callable[[Edge], Edge | None]
) -> dict[int, list[Region]]:
    """Find input layers that can read only each worker's region of the labels; return the regions by position."""
    layers = [node.layer for node in net.nodes]
    if any(moves_rows(layer) or (makes_labels(layer) and not _keeps_labels(layer)) for layer in layers):
        return {}
    wanted: dict[int, set[tuple[int, tuple[int, ...]] | None]] = {}
    for node, stage in zip(net.nodes, net.stages, strict=True):
        for edge in stage.edges:
            if edge.labels and (producer := producer_of(edge)) is not None:
                if not layers[producer.node].is_input:
                    return {}
                labels = labels_shape(layers[producer.node])
                wanted.setdefault(producer.node, set()).add(_label_axes(node.layer, cuts[node.layer.name], labels))
    regions = {}
    for position, axes in wanted.items():
        layer = layers[position]
        if cuts[layer.name].grid and len(axes) == 1 and (cut := axes.pop()) is not None:
            regions[position] = cut_regions(labels_shape(layer), *cut)
    return regions


def _keeps_labels(layer: Layer) -> bool:
    return layer.is_input or (isinstance(layer, Label) and not layer.settings.count)


def _label_axes(layer: Layer, cut: LayerCut, labels: Shape) -> tuple[int, tuple[int, ...]] | None:
    """Return the axes along which a layer needs parts of labels, as for ``cut_regions``; None for all."""
    field = layer.field_shape
    if not cut.grid or field[2:] != labels[len(labels) - len(field) + 2 :] or not field[2:]:
        return None
    return cut.dim - len(field) + len(labels), cut.grid


def as_labels(feature: ShardedFeature) -> ShardedFeature:
    """Return how the labels of a feature are distributed: each worker has all rows' if it is cut by space."""
    return feature._replace(dim=COPIED, grid=()) if feature.grid else feature


def moves_rows(layer: Layer) -> bool:
    """Whether a layer slices or joins its sources' rows, and so their labels."""
    return isinstance(layer, (SliceLayer, Concate)) and layer.axis == ROWS


def label_conf(name: str, source: str) -> LayerConf:
    """Return the configuration of a layer that carries labels between workers."""
    return LayerConf(name=name, type=LayerType.kLabel, srclayers=[source])
