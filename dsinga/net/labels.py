"""How labels get to the workers that want them: along with a feature, or as a feature of their own over bridges."""

from __future__ import annotations

from collections.abc import Mapping

from dsinga.job import LayerConf, LayerType
from dsinga.layers.base import Layer
from dsinga.layers.connection import Concate, Slice
from dsinga.layers.context import Rows
from dsinga.layers.label import FeatureAsLabels, LabelsAsFeature
from dsinga.net.dataflow import WHOLE, Edge
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.partitioned import FEATURES, ROWS, WHOLE_LAYER, Cut, Place
from dsinga.net.redistribute import Feature, Graph, Held, Wanted, bring


class Labels:
    """The labels of a net that is being cut; ``features`` has where the workers have the features so far.

    Labels come from a maker: an input layer, one that makes labels or hands them on in a way of its own, or a kSlice or
    kConcate layer of rows. All other layers hand on those of the first source that has some.
    """

    def __init__(self, net: NeuralNet, graph: Graph, features: Mapping[Edge, Feature], cuts: Mapping[str, Cut]):
        self._net, self._graph, self._features, self._cuts = net, graph, features, cuts
        self._moving: dict[Edge, Feature] = {}  # labels as features, by maker
        self._moved: dict[tuple[Edge, Wanted], Mapping[int, Held]] = {}  # likewise, where they have been brought
        self._brought: dict[tuple[Edge, Wanted], Mapping[int, Held]] = {}  # as labels again

    def bring(self, edge: Edge, wanted: Wanted) -> Mapping[int, Held]:
        """Return where the workers find the labels that ``edge`` carries; they move as a feature where they must."""
        maker = self._maker(edge) or Edge(edge.node)
        layer = self._net.nodes[maker.node].layer
        if wanted.dim == FEATURES:
            wanted = Wanted(WHOLE_LAYER, wanted.locations)
        if not moves_rows(layer):
            made = self._features.get(maker) or self._features[Edge(maker.node, 0)]
            if made.serves(wanted):
                return {location: Held(held.node) for location, held in made.held.items()}
        if (maker, wanted) not in self._brought:
            held, feature = self._move(maker, wanted), self._moving[maker]
            conf = label_conf(f"{feature.name}:{wanted}", feature.name)
            self._brought[maker, wanted] = self._add(FeatureAsLabels(conf, [feature.shape]), layer, held)
        return self._brought[maker, wanted]

    def _maker(self, edge: Edge) -> Edge | None:
        """Return the layer that makes the labels that come along ``edge``, as far as can be told; else None."""
        node = self._net.nodes[edge.node]
        if moves_rows(node.layer) and not (node.layer.hands_parts and edge.part == WHOLE):
            return edge._replace(labels=False)
        if makes_labels(node.layer):
            return Edge(edge.node)
        found = map(self._maker, self._net.stages[edge.node].edges)
        return next((maker for maker in found if maker is not None), None)

    def _move(self, maker: Edge, wanted: Wanted) -> Mapping[int, Held]:
        """Return where the workers find the labels of ``maker`` as a feature."""
        if maker not in self._moving:
            layer = self._net.nodes[maker.node].layer
            self._moving[maker] = self._rearranged(maker, layer) if moves_rows(layer) else self._made(maker, layer)
        if (maker, wanted) not in self._moved:
            self._moved[maker, wanted] = bring(self._graph, self._moving[maker], wanted)
        return self._moved[maker, wanted]

    def _made(self, maker: Edge, layer: Layer) -> Feature:
        made = self._features.get(maker) or self._features[Edge(maker.node, 0)]
        conf = label_conf(f"labels({layer.name})", layer.name)
        out = LabelsAsFeature(conf, [(layer.shape[0], *layer.label_shape)])
        return Feature(conf.name, out.shape, made.dim, self._add(out, layer, made.held))

    def _rearranged(self, maker: Edge, layer: Layer) -> Feature:
        """Slice or join labels as ``layer`` does the rows that they belong to, where it does so."""
        location = self._cuts[layer.name].location
        makers = [self._maker(edge) for edge in self._net.stages[maker.node].edges]
        if None in makers:
            raise layer.fail("labels are wanted of its rows, of which some have none", field="srclayers")
        held = [self._move(one, Wanted(WHOLE_LAYER, (location,)))[location] for one in makers if one is not None]
        shapes = [self._moving[one].shape for one in makers if one is not None]
        conf, shape = label_conf(f"labels({layer.name})", layer.name), (layer.shape[0], *shapes[0][1:])
        own: Layer
        if isinstance(layer, Slice):
            conf.name = f"labels({layer.name}.{maker.part})"
            own, shape = Slice.of(conf, shapes[0], ROWS, layer.bounds), (layer.part_shapes[maker.part][0], *shape[1:])
        else:
            own = Concate(conf, shapes)
        rows = Rows(0, layer.shape[0], layer.shape[0])
        node = self._graph.add(own, Place(location, layer.name), held, rows=rows)
        return Feature(conf.name, shape, WHOLE_LAYER, {location: Held(node, maker.part)})

    def _add(self, connection: Layer, layer: Layer, held: Mapping[int, Held]) -> Mapping[int, Held]:
        """Add a layer that takes what is held and changes nothing of how it is cut."""
        added = {}
        for location, source in held.items():
            rows = self._graph.nodes[source.node].rows
            assert rows is not None
            added[location] = Held(self._graph.add(connection, Place(location, layer.name), [source], rows=rows))
        return added


def makes_labels(layer: Layer) -> bool:
    """Whether the layer gives other labels than the first of its sources that has some, of the same rows."""
    if layer.is_input:
        return getattr(layer, "has_labels", True)
    own_way = type(layer).hand_on_labels is not Layer.hand_on_labels and not isinstance(layer, (Slice, Concate))
    return layer.makes_labels or own_way


def moves_rows(layer: Layer) -> bool:
    """Whether the rows of the layer are others than those of its sources."""
    return isinstance(layer, (Slice, Concate)) and layer.axis == ROWS


def label_conf(name: str, source: str) -> LayerConf:
    """Return the configuration of a layer that carries labels."""
    return LayerConf(name=name, type=LayerType.kLabel, srclayers=[source])
