"""Pictures of nets: complete, without overlap, with straight chains."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.addons.pictures.drawing import net_to_svg as to_svg
from dsinga.addons.pictures.drawing import with_sites
from dsinga.addons.pictures.drawing.layered_layout import layered_layout
from dsinga.addons.pictures.drawing.net_svg import COLOURS
from dsinga.addons.pictures.drawing.partitioned_svg import colours, partitioned_to_svg
from dsinga.addons.pictures.drawing.swimlanes import find_boxes, place_boxes
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.cluster_topology import topology
from dsinga.cutting.partitioning import partition
from dsinga.job import ClusterConf, Job
from tests.support.net_cases import IMAGES, build, dense, layer
from tests.support.partition_nets import NETS, net_of
from tests.support.random_nets import nets

SVG = "{http://www.w3.org/2000/svg}"


def convnet(depth=10):
    """A net with a side branch, a loss that needs labels from far above, and an output layer."""
    layers = [layer("data", "kRecordInput")]
    for k in range(depth):
        window = {"convolution_conf": {"num_filters": 4, "kernel": 3, "pad": 1}}
        layers += [layer(f"conv{k}", "kConvolution", layers[-1].name, **window), layer(f"relu{k}", "kReLU", f"conv{k}")]
    layers += [
        dense("side", f"relu{depth // 2}", 7),
        layer("side_loss", "kSoftmaxLoss", "side", "data"),
        dense("ip<1>", layers[-1].name, 7),
        layer("loss", "kSoftmaxLoss", "ip<1>", "data"),
        layer("top", "kArgSort", "ip<1>"),
    ]
    return build(*layers, data=IMAGES)


def boxes(svg):
    return [tuple(float(rect.get(key)) for key in ("x", "y", "width", "height")) for rect in svg.iter(f"{SVG}rect")]


def test_every_layer_is_drawn_with_name_type_shape_params_and_edges():
    net = convnet()
    svg = ElementTree.fromstring(to_svg(net))
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert len(boxes(svg)) == len(net.nodes) == 27
    for expected in ("conv3", "ip<1>", "Convolution", "4×4×8×8", "112 params", "split(relu5)"):
        assert expected in texts
    edges = [path for path in svg.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(edges) == sum(len(node.sources) for node in net.nodes)
    assert sum(path.get("stroke-dasharray") is not None for path in edges) == 2  # labels
    assert {rect.get("fill") for rect in svg.iter(f"{SVG}rect")} == {fill for fill, _ in COLOURS.values()}


def test_the_picture_needs_nothing_else():
    net = convnet()
    text = net._repr_html_()
    assert text == to_svg(net)
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search("<script|<image|<style", text)


def test_sites_are_drawn_above_the_net_inside_the_picture():
    conf = ClusterConf(
        nworker_groups=3, nserver_groups=3, nworkers_per_group=8, sync_freq=100, sync_method="kMean",
        mean_conf={"site": ["10.0.1.*", "clinic-b", "clinic-c"]},
    )  # fmt: skip
    net = convnet(2)
    svg = ElementTree.fromstring(with_sites(to_svg(net), topology(Job(cluster=conf), 1, 1), "each link carries 1 MB"))
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    for expected in ("site 2", "clinic-b", "w5", "+2", "s0", "each link carries 1 MB", "conv1"):
        assert expected in texts
    sites = [rect for rect in svg.iter(f"{SVG}rect") if rect.get("class") == "site"]
    assert len(sites) == len([path for path in svg.iter(f"{SVG}path") if path.get("class") == "link"]) == 3
    inner = svg.find(f"{SVG}svg")
    assert max(float(site.get("y")) + float(site.get("height")) for site in sites) < float(inner.get("y"))
    assert float(inner.get("y")) + float(inner.get("height")) <= float(svg.get("height"))
    assert max(float(site.get("x")) + float(site.get("width")) for site in sites) < float(svg.get("width"))


def test_a_chain_is_straight_even_beside_a_passing_edge():
    grid = layered_layout([[], [0], [1], [2], [3, 0]])
    assert len({round(x, 6) for x in grid.x}) == 1
    assert len(set(grid.routes[0, 4])) == 1
    assert abs(grid.routes[0, 4][0] - grid.x[0]) >= 0.65 - 1e-9


@given(st.data())
def test_random_graphs_are_arranged_in_ranks_without_overlap(data):
    count = data.draw(st.integers(1, 25))
    sources = [data.draw(st.lists(st.integers(0, k - 1), unique=True, max_size=3)) if k else [] for k in range(count)]
    grid = layered_layout(sources, 1.0, 0.3)
    for node, into in enumerate(sources):
        assert grid.rank[node] == max((grid.rank[source] + 1 for source in into), default=0)
        for source in into:
            assert len(grid.routes[source, node]) == grid.rank[node] - grid.rank[source] - 1
    things = [(grid.rank[node], x, 1.0) for node, x in enumerate(grid.x)]
    for (source, _), route in grid.routes.items():
        things += [(grid.rank[source] + 1 + k, x, 0.3) for k, x in enumerate(route)]
    things.sort()
    for (rank, x, size), (rank2, x2, size2) in zip(things, things[1:], strict=False):
        assert rank != rank2 or x2 - x >= (size + size2) / 2 - 1e-6
    assert all(size / 2 - 1e-6 <= x <= grid.width - size / 2 + 1e-6 for _, x, size in things)


# Pictures of partitioned nets: a swimlane and a colour for each worker, bridges and edges between lanes.
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
        layer("data", "kCSVInput", location=0), dense("a", "data", location=0), dense("b", "a", location=1),
        layer("loss", "kSoftmaxLoss", "b", "data", location=1),
    )  # fmt: skip
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
