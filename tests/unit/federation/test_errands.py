"""A pulled route whose link moves: the old source is gone back to, drained, and left without a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unit.federation.world import World
from weft.federation import Route
from weft.federation.records import Link
from weft.model.errors import Refused

OLD = "weft.bridge.here:news"
DYNAMIC = Route("news", "up", "dynamic", "x")
STATIC = Route("news", "up", "static", "x", key="a")
DAY_S = 86_400


def moved(messages: int, route: Route = DYNAMIC) -> World:
    """Here pulls from one; then it moves to two, and one is back with messages for it."""
    world = World()
    one, _, here = world.add("one"), world.add("two"), world.add("here")
    here.bind("q", "a")
    world.link("here", "one", "two", name="up")
    world.do("here", world.nodes["here"].put_route(route, 0))
    world.settle(90)
    assert world.reflected("one", "here") == {"a"}
    assert not world.reflected("two", "here")
    one.messages[OLD] = messages
    world.break_link("here", "one")
    world.settle(5)
    assert world.reflected("two", "here") == {"a"}
    assert world.reflected("one", "here") == {"a"}
    world.heal()
    return world


def drains(world: World) -> list[str]:
    """Queues that `here` fetches from, with whose they are."""
    return [
        f"{socket.peer} {ask.name}"
        for socket in world.sockets.values()
        if socket.owner == "here"
        for ask in socket.links.values()
        if ask.name == "weft-news"
    ]


@pytest.mark.parametrize("route", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_what_waits_is_fetched_and_the_queue_goes_when_nothing_can_be_on_its_way(route: Route) -> None:
    world = moved(3, route)
    world.settle(40)
    assert sorted(drains(world)) == ["one weft-news", "two weft-news"]
    assert world.reflected("one", "here") == {"a"}  # messages may still be on their way to it
    world.settle(60)
    assert not world.reflected("one", "here")
    assert OLD in world.tables["one"].queues  # it holds something
    world.tables["one"].messages[OLD] = 0
    world.settle(5)
    assert OLD not in world.tables["one"].queues
    assert drains(world) == ["two weft-news"]
    assert {socket.peer for socket in world.sockets.values() if socket.owner == "here"} == {"two"}
    assert [row["name"] for row in world.nodes["here"].links()] == ["up"]


def test_a_link_that_comes_back_is_not_left() -> None:
    world = moved(messages=0)
    world.settle(40)
    world.break_link("here", "two")
    world.settle(5)
    world.heal()
    world.settle(90)
    assert world.reflected("one", "here") == {"a"}
    assert not world.reflected("two", "here")
    assert OLD not in world.tables["two"].queues
    assert drains(world) == ["one weft-news"]


def test_a_route_that_ends_ends_everywhere() -> None:
    world = moved(messages=3)
    world.settle(10)
    world.do("here", world.nodes["here"].remove_route("news"))
    world.settle(10)
    assert OLD not in world.tables["one"].queues | world.tables["two"].queues
    world.do("here", world.nodes["here"].remove_link("up", world.now_ns))
    world.settle(10)
    assert not [socket for socket in world.sockets.values() if socket.owner == "here"]


def test_a_route_that_ends_is_over_at_a_peer_that_is_away_once_that_is_back() -> None:
    world = moved(messages=3)
    world.settle(10)
    world.break_link("here", "one")
    world.do("here", world.nodes["here"].remove_route("news"))
    world.settle(60)
    assert OLD in world.tables["one"].queues
    world.heal()
    world.settle(60)
    assert OLD not in world.tables["one"].queues
    assert {socket.peer for socket in world.sockets.values() if socket.owner == "here"} == {"two"}


def test_a_peer_that_never_answers_is_not_waited_for_longer_than_it_keeps_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = moved(messages=3)
    world.settle(10)
    monkeypatch.setattr(world.nodes["one"], "on_control", lambda *_: [])  # it hears, and says nothing
    world.do("here", world.nodes["here"].remove_route("news"))
    world.settle(100)
    assert {socket.peer for socket in world.sockets.values() if socket.owner == "here"} == {"one", "two"}
    assert not drains(world)
    world.now_ns += DAY_S * 1_000_000_000
    world.settle(10)
    assert {socket.peer for socket in world.sockets.values() if socket.owner == "here"} == {"two"}


def test_a_route_made_anew_under_its_old_name_is_not_taken_for_the_one_that_is_over() -> None:
    world = moved(messages=3)
    world.settle(10)
    world.do("here", world.nodes["here"].remove_route("news"))
    world.do("here", world.nodes["here"].put_route(DYNAMIC, world.now_ns))
    world.break_link("here", "two")  # so the link goes back to `one`, where the old route is still being ended
    world.settle(5)
    world.heal()
    world.settle(90)
    assert world.reflected("one", "here") == {"a"}
    assert drains(world) == ["one weft-news"]


@pytest.mark.parametrize("route", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_a_route_that_becomes_faster_keeps_its_queue(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    one = world.add("one")
    world.add("here").bind("q", "a")
    world.link("here", "one", name="up")
    world.do("here", world.nodes["here"].put_route(route, 0))
    world.settle(5)
    dropped: list[str] = []
    monkeypatch.setattr(one, "drop_queue", lambda _vhost, queue: dropped.append(queue) or [])
    faster = replace(route, credit=7, bytes_per_s_max=1_000)
    world.do("here", world.nodes["here"].put_route(faster, world.now_ns))
    world.settle(60)
    assert dropped == []
    (ask,) = [ask for socket in world.sockets.values() for ask in socket.links.values() if ask.name == "weft-news"]
    assert (ask.credit, ask.bytes_per_s_max) == (7, 1_000)
    assert world.nodes["here"].routes()[0]["credit"] == 7
    assert world.state("here") == "flowing"


def test_a_static_route_from_an_exchange_that_looks_at_no_keys_comes_to_rest() -> None:
    world = World()
    world.add("one").exchanges["x"] = "fanout"
    world.add("here")
    world.link("here", "one", name="up")
    world.do("here", world.nodes["here"].put_route(STATIC, 0))
    world.settle(5)
    assert world.reflected("one", "here") == {""}
    said = world.posts
    world.settle(60)
    assert world.posts - said <= 20  # a comparison every 15 seconds and its answer, not everything anew
    assert world.nodes["here"].routes()[0]["mended"] == 1


def test_two_addresses_of_one_node_are_one_source() -> None:
    world = World()
    world.add("one")
    world.add("here").bind("q", "a")
    world.link("here", "one", "one", name="up")
    world.do("here", world.nodes["here"].put_route(Route("news", "up", "dynamic", "x"), 0))
    world.settle(90)
    assert world.reflected("one", "here") == {"a"}
    assert drains(world) == ["one weft-news"]


def test_names_of_such_connections_are_nobodys() -> None:
    world = World()
    world.add("here")
    with pytest.raises(Refused, match="names that begin with ~"):
        world.nodes["here"].put_link(Link("~1", ("amqp://one",)), 0)
