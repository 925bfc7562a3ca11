"""Dynamic routes from a RabbitMQ: its bindings are those that are wanted here; it is asked again when it says no."""

from __future__ import annotations

import pytest

from unit.federation.world import Tables, World
from weft.federation import Link, Route
from weft.model.errors import ConfigError


def follow(management: str = "http://rabbit:15672") -> tuple[World, Tables]:
    """A node with a dynamic route from a RabbitMQ, and a binding."""
    world = World()
    world.rabbits.add("rabbit")
    tables = world.add("here")
    tables.bind("q", "early")
    link = Link("to-rabbit", ("amqp://rabbit",), management=management)
    world.do("here", world.nodes["here"].put_link(link, world.now_ns))
    route = Route("r", "to-rabbit", "dynamic", "x")
    world.do("here", world.nodes["here"].put_route(route, world.now_ns))
    world.settle()
    return world, tables


def drained(world: World) -> list[str]:
    return [ask.address for socket in world.sockets.values() for ask in socket.links.values()]


def test_bindings_are_followed() -> None:
    world, tables = follow()
    first = world.mirrors[0]
    assert (first.management, first.exchange, first.keys, first.peer.host) == (
        "http://rabbit:15672", "x", ("early",), "rabbit",
    )  # fmt: skip
    assert world.state("here") == "flowing"
    assert drained(world) == [f"/amq/queue/{first.queue}"]
    tables.bind("q", "late")
    tables.unbind("q", "early")
    world.settle(0.1)
    assert world.mirrors[-1].keys == ("late",)
    assert world.mirrors[-1].queue == first.queue
    assert len(drained(world)) == 1, "one queue, one link"


def test_it_is_compared_again_and_after_a_reconnect() -> None:
    world, _ = follow()
    count = len(world.mirrors)
    world.settle(60)
    assert 3 <= len(world.mirrors) - count <= 5, "every 15 seconds"
    world.break_link("here", "rabbit")
    world.settle(20)
    count = len(world.mirrors)
    world.settle(20)
    assert len(world.mirrors) == count, "nobody is asked while the link is down"
    world.heal()
    world.settle(60)
    assert len(world.mirrors) > count
    assert world.state("here") == "flowing"


def test_what_it_refuses_is_told_and_tried_again() -> None:
    world, tables = follow()
    world.refuses = "POST /api/bindings: 404"
    tables.bind("q", "more")
    world.settle(5)
    assert world.nodes["here"].routes()[0]["cause"] == "POST /api/bindings: 404"
    assert 4 <= [mirror.keys for mirror in world.mirrors].count(("early", "more")) <= 7
    world.refuses = ""
    world.settle(2)
    assert world.nodes["here"].routes()[0]["cause"] == "2 bindings"


def test_what_others_want_through_us_is_asked_for_too() -> None:
    world, _ = follow()
    world.add("behind").bind("q", "far")
    world.dynamic("behind", "here")
    world.settle(2)
    assert set(world.mirrors[-1].keys) == {"early", "far"}


def test_its_queue_goes_with_the_route() -> None:
    world, tables = follow()
    world.do("here", world.nodes["here"].remove_route("r"))
    world.settle()
    assert world.mirrors[-1].is_over
    assert drained(world) == []
    count = len(world.mirrors)
    tables.bind("q", "after")
    world.settle(40)
    assert len(world.mirrors) == count


def test_without_management_it_says_what_is_missing() -> None:
    world, _ = follow("")
    assert world.mirrors == []
    assert "name its management" in world.nodes["here"].routes()[0]["cause"]
    with pytest.raises(ConfigError, match="http://"):
        Link("l", ("amqp://rabbit",), management="rabbit:15672")


def test_headers_cannot_be_asked_for() -> None:
    world, tables = follow()
    tables.exchanges["x"] = "headers"
    tables.bind("q", "more")
    count = len(world.mirrors)
    world.settle(3)
    assert len(world.mirrors) == count
    assert "headers" in world.nodes["here"].routes()[0]["cause"]
