"""Every update reaches every server group exactly once, on any connected graph and in any interleaving."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.errors import UserError
from dsinga.server import routes

SHAPES = {
    "all to all": lambda groups: list(combinations(range(groups), 2)),
    "ring": lambda groups: [(group, (group + 1) % groups) for group in range(groups) if groups > 1],
    "star": lambda groups: [(0, group) for group in range(1, groups)],
    "star around the last": lambda groups: [(group, groups - 1) for group in range(groups - 1)],
    "chain": lambda groups: [(group, group + 1) for group in range(groups - 1)],
}


@st.composite
def connected(draw):
    """The number of groups, and edges that connect them: a random tree, and some more; doubled and turned edges too."""
    groups = draw(st.integers(1, 8))
    tree = [(draw(st.integers(0, group - 1)), group) for group in range(1, groups)]
    pairs = list(combinations(range(groups), 2))
    more = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    names = draw(st.permutations(range(groups)))
    found = [(names[a], names[b]) for a, b in tree + more]
    return groups, [edge[::-1] if draw(st.booleans()) else edge for edge in found]


def simulate(table, groups, updates, choose):
    """Let each origin in ``updates`` do one update at a time, in an interleaving that ``choose`` draws.

    Returns for each group how often every update has reached it. What a group owes on a route is added up until it is
    sent, as a Counter of updates.
    """
    reached = [Counter() for _ in range(groups)]
    owed = {}

    def owe(numbers, what):
        for number in numbers:
            owed.setdefault(number, Counter()).update(what)

    todo = list(enumerate(updates))
    while todo or owed:
        events = [*(["update"] if todo else []), *owed]
        event = choose(events)
        if event == "update":
            name, origin = todo.pop()
            reached[origin][name] += 1
            owe(table.own[origin], [name])
        else:
            what, route = owed.pop(event), table.routes[event]
            reached[route.group] += what
            owe(route.onward, what)
    return reached


def assert_exactly_once(table, groups, updates, choose):
    everything = Counter(range(len(updates)))
    assert simulate(table, groups, updates, choose) == [everything] * groups


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("groups", range(1, 8))
@given(data=st.data())
def test_every_update_reaches_every_group_once(shape, groups, data):
    table = routes(SHAPES[shape](groups), groups)
    updates = data.draw(st.lists(st.integers(0, groups - 1), max_size=6))
    assert_exactly_once(table, groups, updates, lambda events: data.draw(st.sampled_from(events)))


@given(graph=connected(), data=st.data())
def test_every_update_reaches_every_group_once_on_any_connected_graph(graph, data):
    groups, edges = graph
    updates = data.draw(st.lists(st.integers(0, groups - 1), max_size=6))
    table = routes(edges, groups)
    assert_exactly_once(table, groups, updates, lambda events: data.draw(st.sampled_from(events)))


def test_every_update_reaches_every_group_once_on_every_connected_graph_of_up_to_five_groups():
    connected_graphs = 0
    for groups in range(1, 6):
        pairs = list(combinations(range(groups), 2))
        for number in range(2 ** len(pairs)):
            edges = [pair for bit, pair in enumerate(pairs) if number >> bit & 1]
            try:
                table = routes(edges, groups)
            except UserError:
                continue
            connected_graphs += 1
            assert_exactly_once(table, groups, range(groups), lambda events: events[0])
    assert connected_graphs == 1 + 1 + 4 + 38 + 728  # labelled connected graphs, OEIS A001187: none was refused


@given(graph=connected())
def test_an_update_goes_along_edges_and_by_a_shortest_way(graph):
    groups, edges = graph
    neighbours = {frozenset(edge) for edge in edges}
    table = routes(edges, groups)
    for origin in range(groups):
        hops, front, distance = {origin: 0}, [(origin, table.own[origin])], 0
        while front:
            distance += 1
            ways = [(group, table.routes[number]) for group, numbers in front for number in numbers]
            assert all(frozenset((group, route.group)) in neighbours for group, route in ways)
            hops |= {route.group: distance for _, route in ways}
            front = [(route.group, route.onward) for _, route in ways]
        assert hops == distances(origin, neighbours)


def distances(origin, neighbours):
    found, distance = {origin: 0}, 0
    while new := {b for edge in neighbours for b in edge if edge & found.keys() and b not in found}:
        distance += 1
        found |= dict.fromkeys(new, distance)
    return found


def sums(table):
    """Whoever sends on a route keeps a sum for it: all pairs of sender and route."""
    senders = [*enumerate(table.own), *((route.group, route.onward) for route in table.routes)]
    return {(sender, number) for sender, numbers in senders for number in numbers}


@pytest.mark.parametrize("shape", ["all to all", "star", "chain"])
@pytest.mark.parametrize("groups", [2, 3, 6])
def test_neighbours_send_each_other_one_sum(shape, groups):
    edges = SHAPES[shape](groups)
    assert len(sums(routes(edges, groups))) == 2 * len(edges)


@given(data=st.data(), groups=st.integers(2, 9))
def test_neighbours_in_a_tree_send_each_other_one_sum(data, groups):
    tree = [(data.draw(st.integers(0, group - 1)), group) for group in range(1, groups)]
    assert len(sums(routes(tree, groups))) == 2 * len(tree)


def test_on_a_ring_it_matters_how_many_groups_are_still_to_be_reached():
    assert len(sums(routes(SHAPES["ring"](5), 5))) == 2 * 5 * 2


def test_groups_that_are_not_connected_are_refused():
    with pytest.raises(UserError, match="no sync_edge connects server groups 2, 3 with group 0: add a sync_edge"):
        routes([(0, 1), (2, 3)], 4)
    with pytest.raises(UserError, match="no sync_edge connects server group 1 with group 0"):
        routes([], 2)
