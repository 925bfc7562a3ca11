"""Dynamic routes: bindings travel to the source, over any topology, and are compared after every reconnect."""

from __future__ import annotations

import random
import time
from itertools import permutations

import pytest

from unit.federation.world import PLAIN, World
from weft.federation.bridges import Bridges
from weft.federation.control import Said
from weft.model.changes import OpenLink


def test_a_binding_is_reflected_and_withdrawn() -> None:
    world = World()
    world.add("source")
    tables = world.add("here")
    tables.bind("q", "early")
    world.dynamic("here", "source")
    world.settle()
    assert world.reflected("source", "here") == {"early"}
    assert world.state("here") == "flowing"
    tables.bind("q", "late")
    tables.bind("other", "late")
    world.settle()
    assert world.reflected("source", "here") == {"early", "late"}
    tables.unbind("q", "late")
    world.settle()
    assert world.reflected("source", "here") == {"early", "late"}  # the other queue still wants it
    tables.unbind("other", "late")
    tables.unbind("q", "early")
    world.settle()
    assert world.reflected("source", "here") == set()


def test_a_chain_passes_keys_on() -> None:
    world = World()
    tables = {name: world.add(name) for name in "abcd"}
    for destination, source in ("dc", "cb", "ba"):
        world.dynamic(destination, source)
    world.settle()
    tables["d"].bind("q", "k")
    world.settle()
    assert world.reflected("a", "b") == world.reflected("b", "c") == world.reflected("c", "d") == {"k"}
    tables["d"].unbind("q", "k")
    world.settle()
    assert world.reflected("a", "b") == set()


def test_one_subscriber_does_not_hide_another_behind_it() -> None:
    """A ring a-b-c-d with a tail c-e-f: from c, the nearest place of the key is a, over b and over d alike."""
    world = World()
    tables = {name: world.add(name) for name in "abcdef"}
    for one, other in ("ab", "bc", "cd", "da", "ce", "ef"):
        world.dynamic(one, other)
        world.dynamic(other, one)
    tables["a"].bind("q", "k")
    tables["f"].bind("q", "k")
    world.settle()
    assert world.reflected("a", "b") == world.reflected("a", "d") == {"k"}
    tables["f"].unbind("q", "k")
    world.settle()
    assert world.reflected("a", "b") == world.reflected("a", "d") == set()


@pytest.mark.parametrize("size", [3, 5])
def test_a_complete_graph_forgets_a_key_that_is_bound_nowhere(size: int) -> None:
    world = World()
    names = "abcdefgh"[:size]
    tables = {name: world.add(name) for name in names}
    for destination in names:
        for source in names:
            if destination != source:
                world.dynamic(destination, source)
    world.settle()
    tables["a"].bind("q", "k")
    world.settle()
    for name in names[1:]:
        assert world.reflected(name, "a") == {"k"}
    tables["a"].unbind("q", "k")
    world.settle()
    leftovers = {(s, d): world.reflected(s, d) for s in names for d in names if s != d}
    assert not any(leftovers.values()), leftovers


def test_a_key_dies_out_by_a_round_per_node_not_by_every_path_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    reflects = []
    follow = Bridges.on_reflect
    monkeypatch.setattr(Bridges, "on_reflect", lambda *args: reflects.append(args) or follow(*args))
    world = World()
    names = "abcdefgh"
    tables = {name: world.add(name) for name in names}
    for destination, source in permutations(names, 2):
        world.dynamic(destination, source)
    world.settle()
    tables["a"].bind("q", "k")
    world.settle()
    reflects.clear()
    tables["a"].unbind("q", "k")
    world.settle()
    assert 0 < len(reflects) <= len(names) * len(names) * (len(names) - 1)


def test_after_a_reconnect_the_bindings_are_compared() -> None:
    world = World()
    source = world.add("source")
    tables = world.add("here")
    for number in range(100):
        tables.bind("q", f"k{number}")
    world.dynamic("here", "source")
    world.settle()
    world.break_link("here", "source")
    tables.bind("q", "new")
    tables.unbind("q", "k7")
    bridge = next(queue for _, queue, _ in source.bindings if queue.startswith("weft.bridge."))
    source.rebind("/", "x", bridge, [("stray", PLAIN)], [("k3", PLAIN)])
    world.settle()
    assert world.nodes["here"].routes()[0]["state"] == "waiting"
    world.heal()
    world.settle(40)
    wanted = {f"k{number}" for number in range(100)} - {"k7"} | {"new"}
    assert world.reflected("source", "here") == wanted
    assert world.nodes["here"].routes()[0]["mended"] == 100 + 4


def test_what_a_hand_changed_at_the_source_is_mended_while_the_link_is_up() -> None:
    world = World()
    source = world.add("source")
    tables = world.add("here")
    tables.bind("q", "k")
    world.dynamic("here", "source")
    world.settle()
    bridge = next(queue for _, queue, _ in source.bindings if queue.startswith("weft.bridge."))
    source.rebind("/", "x", bridge, [], [("k", PLAIN)])
    world.settle(40)
    assert world.reflected("source", "here") == {"k"}


def test_a_source_that_restarts_keeps_and_passes_on_what_it_was_told() -> None:
    world = World()
    tables = {name: world.add(name) for name in "abc"}
    route = world.dynamic("c", "b")
    upstream = world.dynamic("b", "a")
    tables["c"].bind("q", "k")
    world.settle()
    assert world.reflected("a", "b") == {"k"}
    world.break_link("c", "b")
    world.kill("b")
    world.add("b")
    world.link("b", "a")
    world.do("b", world.nodes["b"].put_route(upstream, world.now_ns))
    world.settle(10)
    assert world.reflected("a", "b") == {"k"}, "c is away, but its messages must go on to wait for it"
    world.heal()
    tables["c"].unbind("q", "k")
    world.settle(60)
    assert world.reflected("b", "c") == world.reflected("a", "b") == set()
    assert route.name


def test_the_route_ends_with_its_queue() -> None:
    world = World()
    source = world.add("source")
    world.add("here").bind("q", "k")
    route = world.dynamic("here", "source")
    world.settle()
    world.do("here", world.nodes["here"].remove_route(route.name))
    world.settle()
    assert world.reflected("source", "here") == set()
    assert not [queue for queue in source.queues if queue.startswith("weft.bridge.")]


def test_a_missing_exchange_is_said() -> None:
    world = World()
    world.add("source").exchanges.clear()
    world.add("here").bind("q", "k")
    world.dynamic("here", "source")
    world.settle()
    row = world.nodes["here"].routes()[0]
    assert row["state"] == "comparing"
    assert "no exchange 'x'" in row["cause"]


def test_ten_thousand_bindings() -> None:
    world = World()
    world.add("source")
    tables = world.add("here")
    world.dynamic("here", "source")
    world.settle()
    posts = world.posts
    began = time.process_time()
    for number in range(10_000):
        tables.bind("q", f"key-{number}")
    world.settle()
    assert len(world.reflected("source", "here")) == 10_000
    assert world.posts - posts < 10, "bindings of one turn travel together"
    assert time.process_time() - began < 5


@pytest.mark.parametrize("seed", range(20))
def test_random_fabrics_come_to_the_same_end(seed: int) -> None:
    """Whatever the links, cuts and bindings were: at rest, a source has for a destination exactly the keys that can be
    reached through it.
    """
    rng = random.Random(seed)
    world = World(seed)
    names = [f"n{number}" for number in range(rng.randint(3, 8))]
    tables = {name: world.add(name) for name in names}
    edges = set()
    for _ in range(rng.randint(len(names), 2 * len(names))):
        destination, source = rng.sample(names, 2)
        edges.add((destination, source))
    for destination, source in sorted(edges):
        (world.dynamic(destination, source) if rng.random() < 0.5 else world.pushed(source, destination))
    for _ in range(60):
        name, key = rng.choice(names), f"k{rng.randint(0, 5)}"
        (tables[name].bind if rng.random() < 0.6 else tables[name].unbind)("q", key)
        if rng.random() < 0.2:
            world.break_link(*rng.sample(names, 2))
        if rng.random() < 0.3:
            world.heal()
        if rng.random() < 0.5:
            world.settle(rng.random())
    world.heal()
    world.settle(120)
    for destination, source in sorted(edges):
        reachable = {
            key[0]
            for name in _downstream(destination, edges, avoid=source)
            for _, queue, key in tables[name].bindings
            if not queue.startswith("weft.bridge.")
        }
        assert world.reflected(source, destination) == reachable, (seed, source, destination)


def _downstream(start: str, edges: set[tuple[str, str]], avoid: str) -> set[str]:
    """Nodes that messages given to `start` can reach without passing `avoid`."""
    found, pending = {start}, [start]
    while pending:
        at = pending.pop()
        for destination, source in edges:
            if source == at and destination != avoid and destination not in found:
                found.add(destination)
                pending.append(destination)
    return found


def test_a_pushed_route_needs_no_link_back() -> None:
    world = World()
    source, tables = world.add("source"), world.add("far")
    tables.bind("q", "early")
    route = world.pushed("source", "far")
    world.settle()
    assert world.reflected("source", "far") == {"early"}
    assert world.state("source") == "flowing"
    tables.bind("q", "late")
    tables.unbind("q", "early")
    world.settle()
    assert world.reflected("source", "far") == {"late"}
    world.break_link("source", "far")
    tables.bind("q", "while-cut")
    world.settle()
    world.heal()
    world.settle(40)
    assert world.reflected("source", "far") == {"late", "while-cut"}
    world.do("source", world.nodes["source"].remove_route(route.name))
    world.settle()
    assert not [queue for queue in source.queues if queue.startswith("weft.bridge.")]
    tables.bind("q", "after")
    world.settle(40)
    assert world.reflected("source", "far") == set()


def test_the_next_gateway_gets_what_waited_for_the_last() -> None:
    world = World()
    world.add("local")
    for name in ("gateway-1", "gateway-2"):
        world.add(name).bind("work", "k")
    world.pushed("local", "gateway-1", "gateway-2")
    world.settle()
    assert world.nodes["local"].routes()[0]["peer"] == "gateway-1"
    before = world.pushed_keys("local")
    world.kill("gateway-1")
    world.settle(5)
    row = world.nodes["local"].routes()[0]
    assert (row["peer"], row["state"], row["keys"]) == ("gateway-2", "flowing", 1)
    assert world.pushed_keys("local") == before, "one queue, bound all along: nothing is routed twice, nothing waits"
    pushes = [ask for socket in world.sockets.values() for ask in socket.links.values() if "exchange" in ask.address]
    assert [ask.queue for ask in pushes] == list(before)


def test_a_node_that_restarts_passes_on_what_its_gateway_wanted() -> None:
    world = World()
    world.add("up")
    world.add("local")
    world.add("gateway").bind("work", "k")
    world.pushed("local", "gateway")
    world.dynamic("local", "up")
    world.settle()
    assert world.reflected("up", "local") == {"k"}
    world.kill("local")
    world.kill("gateway")
    world.add("local")  # it finds its bindings on disk; its gateway is still away
    world.dynamic("local", "up")
    world.settle(5)
    assert world.reflected("up", "local") == {"k"}


def test_an_exchange_that_is_made_later_is_found() -> None:
    world = World()
    world.add("source")
    far = world.add("far")
    far.exchanges.clear()
    world.pushed("source", "far")
    world.settle()
    assert "no exchange 'x'" in world.nodes["source"].routes()[0]["cause"]
    far.exchanges["x"] = "direct"
    far.bind("q", "k")
    world.settle(40)
    assert world.reflected("source", "far") == {"k"}


def test_what_a_peer_said_opens_nothing_once_its_connection_is_gone() -> None:
    """A fabric of the simulator stood still on this: the route held a link of a connection that was no more."""
    world = World()
    world.add("source")
    world.add("there").bind("q", "a")
    route = world.pushed("source", "there")
    world.settle()
    assert world.state("source") == "flowing"
    world.break_link("source", "there")
    world.settle(0.01)
    keys = {"add": [[["there"], ["a"]]], "drop": []}
    place = {"epoch": 9_000_000, "sequence": 1, "fresh": True, "last": True}
    said = Said("reflect", "there", {"route": route.name, "exchange": "x", "invited": True, **keys, **place})
    steps = world.nodes["source"].on_control("/", said, world.now_ns)
    assert not [step for step in steps if isinstance(step, OpenLink)]
    world.heal()
    world.settle(5)
    assert world.state("source") == "flowing"


def test_a_busy_node_does_what_is_due_all_the_same() -> None:
    """Bindings that come and go put nothing off: a source that has refused is asked again, and comparisons are made."""
    world = World()
    world.add("source").exchanges.clear()
    here = world.add("here")
    world.dynamic("here", "source")
    world.settle(5)
    assert world.state("here") == "comparing"
    due_ns = world.nodes["here"].due_ns
    for number in range(5):
        world.now_ns += 100_000_000
        here.bind("q", str(number))
        world.do("here", world.nodes["here"].flush(world.now_ns))
        assert world.nodes["here"].due_ns == due_ns
    world.tables["source"].exchanges["x"] = "direct"
    world.settle(1)
    assert world.state("here") == "flowing"
