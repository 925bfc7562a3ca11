"""A link that cannot connect: the next address each time, and longer waits once all have been tried."""

from __future__ import annotations

from weft.federation.records import Link
from weft.federation.uplink import Uplink

MS = 1_000_000


def attempts(uplink: Uplink, count: int, now_ns: int) -> tuple[list[str], list[int]]:
    """Which peers are dialled, all in vain, and how many milliseconds pass before each of them."""
    peers, waits = [], []
    for number in range(count):
        due_ns = uplink.due_ns
        assert due_ns is not None
        assert uplink.tick(number, due_ns - 1) is None, "not before its time"
        dial = uplink.tick(number, due_ns)
        assert dial is not None
        peers.append(dial.host)
        waits.append((due_ns - now_ns) // MS)
        now_ns = due_ns
        uplink.lost("refused", now_ns)
    return peers, waits


def test_every_address_in_turn_and_waits_that_grow_with_each_round() -> None:
    uplink = Uplink(Link("up", ("amqp://one", "amqp://two", "amqp://three"), retry_max_s=1), lambda: 0.0)
    peers, waits = attempts(uplink, 18, 0)
    assert peers == ["one", "two", "three"] * 6
    assert waits == [0, 50, 50, 50, 100, 100, 100, 200, 200, 200, 400, 400, 400, 800, 800, 800, 1_000, 1_000]


def test_after_a_success_it_begins_with_the_next_address_and_a_short_wait() -> None:
    uplink = Uplink(Link("up", ("amqp://one", "amqp://two")), lambda: 0.0)
    attempts(uplink, 9, 0)
    now_ns = uplink.due_ns
    assert now_ns is not None
    dial = uplink.tick(9, now_ns)
    assert dial is not None
    assert dial.host == "two"
    uplink.dialled(1, now_ns)
    uplink.opened("peer", "peer", {}, now_ns)
    assert (uplink.state, uplink.due_ns) == ("operational", None)
    uplink.lost("cut", now_ns)
    assert attempts(uplink, 3, now_ns) == (["one", "two", "one"], [50, 50, 100])
