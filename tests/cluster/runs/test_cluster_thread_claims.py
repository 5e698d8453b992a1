"""The policy of the queue of runs: which run gets which threads, and who goes first."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.cluster.queue.thread_claims import ThreadClaims, assign


def worker(threads: int, host: str = "h0", gpus: int = 0, name: str = "") -> dict[str, Any]:
    return {"threads": threads, "host": host, "names": [host, name], "resources": {"GPU": gpus} if gpus else {}}


def cluster(*threads: int) -> dict[str, dict[str, Any]]:
    return {f"w{number}": worker(count) for number, count in enumerate(threads)}


def request(run: str, threads: int = 1, **fields: Any) -> dict[str, Any]:
    base = {"run": run, "job": run, "client": f"client of {run}", "user": "", "threads": threads}
    return {**base, "threads_per_process": 1, "server_processes": 0, "resources": {}, "hosts": [], **fields}


def granted(claims: ThreadClaims) -> dict[str, dict[str, int]]:
    """Return what each running run holds, and {} for those that wait."""
    return {name: record["granted"] for name, record in claims.runs.items()}


def queue_of(workers: dict[str, dict[str, Any]], *requests: dict[str, Any]) -> ThreadClaims:
    claims = ThreadClaims()
    claims.set_workers(workers)
    for each in requests:
        claims.add(each, now=0.0)
        claims.advance(now=1.0)
    return claims


SITES = {f"{host}{number}": worker(1, host) for host in "ab" for number in range(3)}
BUSY = {"w0": worker(2) | {"busy": 2}, "w1": worker(2) | {"busy": 1}, "w2": worker(1)}
MIXED, GPU = {"w0": worker(1), "w1": worker(4, "h1", gpus=1)}, {"resources": {"GPU": 1.0}}
BOTH, ON_H0, BLOCKS = {"w0": worker(1), "w1": worker(1, gpus=1)}, {"hosts": [["h0"]]}, {"threads_per_process": 2}
# Workers, requests by the names of runs, and what each run gets.
GRANTED: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, dict[str, int]]]] = {
    "other hosts": (SITES, {"a": {"threads": 2}, "b": {"threads": 2, "sites": [2, 1, []]}},
                    {"a": {"a0": 1, "a1": 1}, "b": {"a2": 1, "b0": 1}}),
    "named hosts": (SITES, {"b": {"threads": 2, "sites": [2, 1, ["b", "a"]]},
                            "c": {"threads": 2, "sites": [2, 1, ["c", "a"]]}}, {"b": {"a0": 1, "b0": 1}, "c": {}}),
    "workers without runs first": (cluster(2, 2), {"a": {}, "b": {}, "c": {"threads": 2}},
                                   {"a": {"w0": 1}, "b": {"w1": 1}, "c": {"w0": 1, "w1": 1}}),
    "workers without tasks first": (BUSY, {"a": {"threads": 2}}, {"a": {"w1": 1, "w2": 1}}),
    "workers with tasks last": (BUSY, {"a": {"threads": 5}}, {"a": {"w0": 2, "w1": 2, "w2": 1}}),
    "a block fills a worker": (cluster(2, 2), {"a": {"threads": 2, **BLOCKS}}, {"a": {"w0": 2}}),
    "a block and a half": (cluster(2, 2), {"a": {"threads": 3, **BLOCKS}}, {"a": {"w0": 2, "w1": 1}}),
    "a thread is left for b": (MIXED, {"a": GPU, "b": GPU, "c": {"threads": 3}},
                               {"a": {"w1": 1}, "b": {}, "c": {"w0": 1, "w1": 2}}),
    "what b cannot use": (MIXED, {"a": ON_H0, "b": ON_H0, "c": {}}, {"a": {"w0": 1}, "b": {}, "c": {"w1": 1}}),
    "servers leave GPUs": (BOTH, {"a": {"server_processes": 1, **GPU}}, {"a": {"w1": 1, "w0": 1}}),
}  # fmt: skip


def test_blocks_begin_on_the_threads_at_hand_and_take_more() -> None:
    claims = queue_of(cluster(1), request("a", 3, least=1), request("b", 1, least=1))
    assert granted(claims) == {"a": {"w0": 1}, "b": {}}
    claims.set_workers(cluster(1, 4))
    claims.replace("a", [])
    assert granted(claims)["a"] == {"w0": 1, "w1": 2}


@pytest.mark.parametrize("name", GRANTED)
def test_threads_are_granted(name: str) -> None:
    workers, requests, expected = GRANTED[name]
    assert granted(queue_of(workers, *(request(run, **fields) for run, fields in requests.items()))) == expected


def test_separate_servers_take_whole_workers_the_last_ones() -> None:
    claims = queue_of(
        cluster(2, 2, 2), request("a"), request("b", 2, server_processes=1), request("c", 1, server_processes=1)
    )
    assert granted(claims) == {"a": {"w0": 1}, "b": {"w0": 1, "w1": 1, "w2": 2}, "c": {}}
    assert claims.runs["b"]["apart_on"] == ["w2"]
    claims.remove(["b"])
    claims.advance(now=2.0)
    assert granted(claims) == {"a": {"w0": 1}, "c": {"w1": 1, "w2": 2}}


def test_a_later_run_leaves_the_processes_alone_that_separate_servers_wait_for() -> None:
    claims = queue_of(
        cluster(2, 2), request("a"), request("b", server_processes=1), request("c", 2, server_processes=1), request("d")
    )
    assert granted(claims) == {"a": {"w0": 1}, "b": {"w0": 1, "w1": 2}, "c": {}, "d": {}}
    claims.remove(["b"])
    assert claims.advance(now=2.0) == [], "c needs both processes, of which a holds one"
    workers = {"w0": worker(1, "h0", gpus=1), "w1": worker(2, "h1")}
    on_h1 = {"hosts": [["h1"]]}
    claims = queue_of(
        workers, request("a", **on_h1), request("b", server_processes=1, resources={"GPU": 1.0}), request("c", **on_h1)
    )
    assert granted(claims) == {"a": {"w1": 1}, "b": {}, "c": {}}


def test_threads_that_a_run_does_not_use_go_to_the_next() -> None:
    claims = queue_of(cluster(2, 2), request("a", 4), request("b", 3))
    claims.keep("a", {"w0": 1})
    assert claims.advance(now=2.0) == ["b"]
    assert granted(claims) == {"a": {"w0": 1}, "b": {"w0": 1, "w1": 2}}


def test_the_threads_of_a_lost_worker_are_gone() -> None:
    claims = queue_of(cluster(1, 1), request("a", 2), request("b"))
    claims.set_workers({"w1": worker(1), "w2": worker(1)})
    assert claims.advance(now=2.0) == ["b"]
    assert granted(claims) == {"a": {"w1": 1}, "b": {"w2": 1}}


def test_a_run_that_has_lost_all_its_threads_comes_before_those_that_wait() -> None:
    claims = queue_of(cluster(1, 1), request("a", 2), request("b"))
    claims.set_workers({})
    claims.set_workers({"w2": worker(1)})
    assert claims.advance(now=2.0) == []
    claims.replace("a", without=[])
    assert granted(claims) == {"a": {"w2": 1}, "b": {}}


def test_threads_of_a_host_that_no_other_run_holds() -> None:
    workers = {"w0": worker(2), "w1": worker(2), "w2": worker(4, "h1")}
    claims = queue_of(workers, request("a", 2), request("b", 3, hosts=[["h1"]]))
    assert claims.unclaimed("a") == {"h0": 4, "h1": 1}
    assert claims.unclaimed("b") == {"h0": 2, "h1": 4}


def test_the_holders_of_threads_that_a_run_may_use_are_known() -> None:
    workers = {"w0": worker(1), "w1": worker(1, "h1")}
    claims = queue_of(workers, request("a"), request("b"), request("c", hosts=[["h1"]]), request("d"))
    assert [record["job"] for record in claims.holders("c")] == ["b"]
    assert [record["job"] for record in claims.holders("d")] == ["a", "b"]
    assert [record["job"] for record in claims.ahead("d")] == ["c"]


WORKERS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["h0", "h1"]), st.integers(0, 2)), min_size=1, max_size=4
)
REQUESTS = st.fixed_dictionaries(
    {
        "threads": st.integers(1, 3),
        "threads_per_process": st.integers(1, 3),
        "server_processes": st.sampled_from([0, 0, 1]),
        "resources": st.sampled_from([{}, {}, {"GPU": 1.0}, {"GPU": 0.5}]),
        "hosts": st.sampled_from([[], [], [["h0"]], [["h1"]], [["h0"], ["h1"]]]),
    }
)
# What happens to a queue: a request comes, or the run at a place in the list of runs ends, or the cluster changes.
EVENTS = st.lists(st.one_of(REQUESTS, st.integers(0, 2)), min_size=4, max_size=25)


def make_cluster(shapes: list[tuple[int, str, int]]) -> dict[str, dict[str, Any]]:
    return {f"w{number}": worker(*shape) for number, shape in enumerate(shapes)}


def check_grants(claims: ThreadClaims) -> None:
    """No thread and no resource is granted twice; every run that has begun has what it asked for."""
    for address, taken in claims.held().items():
        assert taken.threads <= claims.workers[address]["threads"]
        for name, amount in taken.resources.items():
            assert amount <= claims.workers[address]["resources"].get(name, 0)
    for record in claims.runs.values():
        assert (record["state"] == "running") == bool(record["granted"])
        if record["granted"]:
            partitions = sum(count for address, count in record["granted"].items() if address not in record["apart_on"])
            assert (partitions, len(record["apart_on"])) == (record["threads"], record["server_processes"])
            hosts = [name for names in record["hosts"] for name in names]
            assert all(not hosts or claims.workers[address]["host"] in hosts for address in record["granted"])


def play(claims: ThreadClaims, events: list[Any], first: int = 0) -> list[str]:
    """Apply events, with a check after each; return the names of the runs in the order in which they began."""
    begun: list[str] = []
    for number, event in enumerate(events, first):
        if isinstance(event, int):
            claims.remove(list(claims.runs)[event : event + 1])
        else:
            claims.add(request(f"r{number:02}", **event), now=float(number))
        begun += claims.advance(now=float(number))
        check_grants(claims)
    return begun


def check_no_overtaking(claims: ThreadClaims) -> None:
    """The run that has waited longest could not begin if all that came after it had not come."""
    for number, (name, record) in enumerate(claims.runs.items()):
        if record["state"] == "waiting" and claims.fits(record):
            earlier = ThreadClaims()
            earlier.runs = dict(list(claims.runs.items())[:number])
            assert assign(record, claims.workers, earlier.held()) is None, (name, granted(claims))
            return


@settings(max_examples=150)
@given(WORKERS, EVENTS)
def test_no_run_waits_for_one_that_came_later(shapes: list[tuple[int, str, int]], events: list[Any]) -> None:
    claims = ThreadClaims()
    claims.set_workers(make_cluster(shapes))
    for number, event in enumerate(events):
        play(claims, [event], number)
        check_no_overtaking(claims)


@given(WORKERS, st.lists(st.integers(1, 5), max_size=15))
def test_runs_that_may_use_all_workers_begin_in_the_order_of_their_arrival(shapes: Any, sizes: list[int]) -> None:
    claims = ThreadClaims()
    claims.set_workers(make_cluster(shapes))
    total = sum(each["threads"] for each in claims.workers.values())
    begun = play(claims, [{"threads": size} for size in sizes if size <= total])
    while claims.runs:  # the run that began first ends first
        claims.remove([next(name for name, record in claims.runs.items() if record["state"] == "running")])
        begun += claims.advance(now=0.0)
        check_grants(claims)
    assert begun == sorted(begun)
    assert len(begun) == len([size for size in sizes if size <= total])


@given(WORKERS, WORKERS, EVENTS)
def test_everything_is_released_and_every_run_that_fits_has_its_turn(before: Any, after: Any, events: Any) -> None:
    claims = ThreadClaims()
    claims.set_workers(make_cluster(before))
    play(claims, events)
    claims.remove(name for name, record in claims.runs.items() if record["state"] == "running")
    claims.set_workers(make_cluster(after))
    waiting = {name for name, record in claims.runs.items() if claims.fits(record)}
    begun: set[str] = set()
    while new := claims.advance(now=0.0):
        check_grants(claims)
        begun.update(new)
        claims.remove(new)
    assert begun == waiting
    assert claims.held() == {}
    assert all(assign(record, claims.workers, {}) is None for record in claims.runs.values())
