"""Pictures of partitioned nets: a swimlane and a colour for each worker, bridges and edges between lanes."""

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.addons.pictures.drawing.partitioned_svg import colours, partitioned_to_svg
from dsinga.addons.pictures.drawing.swimlanes import find_boxes, place_boxes
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.partitioning import partition
from tests.support.net_cases import build, dense, layer
from tests.support.partition_nets import NETS, net_of
from tests.support.random_nets import nets

SVG = "{http://www.w3.org/2000/svg}"


def drawn(cut, kind="rect"):
    """Return the classes and attributes of all elements of a kind."""
    return [(box.get("class"), box.attrib) for box in ElementTree.fromstring(partitioned_to_svg(cut)).iter(SVG + kind)]


def extent(attributes):
    x, y, width, height = (float(attributes[key]) for key in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def inside(inner, outer):
    return outer[0] <= inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


@pytest.mark.parametrize("name", NETS)
def test_every_part_lies_in_the_lane_and_has_the_colour_of_its_worker(name):
    cut = partition(net_of(name, "mixed", 3), 3)
    rects = drawn(cut)
    lanes = [extent(box) for kind, box in rects if kind == "lane"]
    assert all(before[2] < after[0] for before, after in zip(lanes, lanes[1:], strict=False))
    for location, lane in enumerate(lanes):
        boxes = [(kind, box) for kind, box in rects if kind != "lane" and inside(extent(box), lane)]
        assert {box["stroke"] for _, box in boxes} <= {colours(location)[1]}
        parts = [node for node in cut.locals[location].nodes if node.layer.name in cut.cuts]
        assert sum(kind == "layer" for kind, _ in boxes) == len(parts)
    assert sum(kind != "lane" for kind, _ in rects) == len(find_boxes(cut))


def test_bridges_edges_between_workers_and_gradients_are_marked():
    net = build(
        layer("data", "kCSVInput", location=0),
        dense("a", "data", location=0),
        dense("b", "a", location=1),
        layer("loss", "kSoftmaxLoss", "b", "data", location=1),
    )
    cut = partition(net, 2)
    rects, paths = drawn(cut), drawn(cut, "path")
    assert [box["fill"] for kind, box in rects if kind == "bridge"] == ["#ffffff"] * 4  # of "a", and of labels
    between = [box for kind, box in paths if kind == "between"]
    assert [box["stroke"] for box in between] == [colours(0)[1]] * 2
    assert sorted(box.get("marker-start", "") for box in between) == ["", "url(#back0)"]
    assert sum("stroke-dasharray" in box for _, box in paths) == 2  # labels of data and of what was received
    texts = [text.text for text in ElementTree.fromstring(partitioned_to_svg(cut)).iter(f"{SVG}text")]
    assert texts.count("send to 1") == texts.count("receive from 0") == 2
    assert {"worker 0", "worker 1"} <= set(texts)


def test_bridges_with_one_purpose_are_one_box():
    cut = partition(net_of("convnet", "hybrid", 4), 4)
    texts = [text.text for text in ElementTree.fromstring(cut._repr_html_()).iter(f"{SVG}text")]
    assert texts.count("send to 1, 2, 3") == texts.count("receive from 1, 2, 3") > 0


def test_colours_of_many_workers_differ():
    assert len({colours(location) for location in range(64)}) == 64


def test_a_worker_without_layers_has_an_empty_lane():
    cut = partition(build(layer("data", "kCSVInput", location=0), dense("a", "data", location=0)), 3)
    assert sum(kind == "lane" for kind, _ in drawn(cut)) == 3


@settings(max_examples=20)
@given(st.data())
def test_random_nets_flow_downwards_with_parts_side_by_side(data):
    parts = data.draw(st.integers(2, 4))
    cut = partition(data.draw(nets(parts)), parts)
    boxes = find_boxes(cut)
    assert sorted(position for box in boxes for position in box.nodes) == list(range(len(cut.nodes)))
    lanes = place_boxes(cut, boxes, lambda box: 1.0, 0.3, 2.0)
    rows: dict[str, set[int]] = {}
    for k, box in enumerate(boxes):
        left, right = lanes.extents[box.location]
        assert left <= lanes.x[k] - 0.5 + 1e-6 <= lanes.x[k] + 0.5 <= right + 1e-6
        assert all(lanes.rank[source] < lanes.rank[k] for source in box.sources)
        first = cut.nodes[box.nodes[0]].layer
        if not isinstance(first, (BridgeSrc, BridgeDst)):
            rows.setdefault(first.name, set()).add(lanes.rank[k])
    assert all(len(ranks) == 1 for ranks in rows.values())
