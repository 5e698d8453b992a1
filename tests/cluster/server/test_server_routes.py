"""Routes bring every update to every server group exactly once, on any connected graph and in any interleaving."""

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dsinga.cluster.server import routes
from tests.support.refusals import refused


@st.composite
def connected(draw):
    """Draw a number of groups and edges that connect them: a random tree and more, some repeated or reversed."""
    groups = draw(st.integers(1, 8))
    tree = [(draw(st.integers(0, group - 1)), group) for group in range(1, groups)]
    pairs = list(combinations(range(groups), 2))
    extra = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    names = draw(st.permutations(range(groups)))
    all_edges = [(names[a], names[b]) for a, b in tree + extra]
    return groups, [edge[::-1] if draw(st.booleans()) else edge for edge in all_edges]


def simulate(table, groups, updates, choose):
    """Return for each group how often every update has reached it, in an interleaving that ``choose`` draws.

    ``updates`` are the origins of the updates. Updates for a route are added up until they are sent, as a Counter.
    """
    reached = [Counter() for _ in range(groups)]
    unsent = {}

    def enqueue(numbers, counts):
        for number in numbers:
            unsent.setdefault(number, Counter()).update(counts)

    todo = list(enumerate(updates))
    while todo or unsent:
        events = [*(["update"] if todo else []), *unsent]
        event = choose(events)
        if event == "update":
            name, origin = todo.pop()
            reached[origin][name] += 1
            enqueue(table.starts[origin], [name])
        else:
            counts, route = unsent.pop(event), table.routes[event]
            reached[route.group] += counts
            enqueue(route.onward, counts)
    return reached


def assert_exactly_once(table, groups, updates, choose):
    everything = Counter(range(len(updates)))
    assert simulate(table, groups, updates, choose) == [everything] * groups


@given(graph=connected(), data=st.data())
def test_every_update_reaches_every_group_once_on_any_connected_graph(graph, data):
    groups, edges = graph
    updates = data.draw(st.lists(st.integers(0, groups - 1), max_size=6))
    table = routes(edges, groups)
    assert_exactly_once(table, groups, updates, lambda events: data.draw(st.sampled_from(events)))


@given(graph=connected())
def test_updates_follow_edges_on_shortest_paths(graph):
    groups, edges = graph
    links = {frozenset(edge) for edge in edges}
    table = routes(edges, groups)
    for origin in range(groups):
        hops, front, distance = {origin: 0}, [(origin, table.starts[origin])], 0
        while front:
            distance += 1
            front_routes = [(group, table.routes[number]) for group, numbers in front for number in numbers]
            assert all(frozenset((group, route.group)) in links for group, route in front_routes)
            hops |= {route.group: distance for _, route in front_routes}
            front = [(route.group, route.onward) for _, route in front_routes]
        assert hops == distances(origin, links)


def distances(origin, links):
    reached, distance = {origin: 0}, 0
    while new := {b for edge in links for b in edge if edge & reached.keys() and b not in reached}:
        distance += 1
        reached |= dict.fromkeys(new, distance)
    return reached


def sums(table):
    """Return all pairs of a sender and a route, for each of which the sender keeps a sum."""
    senders = [*enumerate(table.starts), *((route.group, route.onward) for route in table.routes)]
    return {(sender, number) for sender, numbers in senders for number in numbers}


@given(data=st.data(), groups=st.integers(2, 9))
def test_linked_groups_in_a_tree_send_each_other_one_sum(data, groups):
    tree = [(data.draw(st.integers(0, group - 1)), group) for group in range(1, groups)]
    assert len(sums(routes(tree, groups))) == 2 * len(tree)


def test_linked_groups_on_a_ring_send_a_sum_for_each_length_of_subtree():
    assert len(sums(routes([(group, (group + 1) % 5) for group in range(5)], 5))) == 2 * 5 * 2


def test_groups_that_are_not_connected_are_refused():
    refused(lambda: routes([(0, 1), (2, 3)], 4), "sync_edge connects", "add a sync_edge")
    refused(lambda: routes([], 2), "sync_edge connects", "with group 0")
