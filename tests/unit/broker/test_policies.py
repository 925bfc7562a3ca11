"""Which policy applies, what comes of it, and that it holds at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from unit.broker.desk import Desk, delete_queue, exchange, queue
from weft.model.changes import Change, DeclareExchange, DeclareQueue
from weft.model.errors import Refused
from weft.store import ResourcePolicy


def policy(name: str, pattern: str, /, *, operator: bool = False, **about: Any) -> ResourcePolicy:
    """`max_length=1` is the key max-length of the definition."""
    apply_to, priority = about.pop("apply_to", "all"), about.pop("priority", 0)
    definition = {key.replace("_", "-"): value for key, value in about.items()}
    return ResourcePolicy("/", name, pattern, definition, apply_to, priority, operator)


def apply(desk: Desk, parts: Iterable[Sequence[Change]]) -> None:
    for changes in parts:
        desk.kernel.apply(changes)


def put(desk: Desk, *policies: ResourcePolicy) -> None:
    for one in policies:
        apply(desk, desk.topology.set_policy(one))


def row(desk: Desk, name: str) -> DeclareQueue:
    return desk.kernel.queues["/", name]


def exchange_row(desk: Desk, name: str) -> DeclareExchange:
    return desk.kernel.exchanges["/", name]


def test_a_policy_holds_at_once_and_until_it_is_cleared(desk: Desk) -> None:
    desk.succeed(queue("orders"))
    desk.succeed(queue("other"))
    put(desk, policy("short", "^ord", max_length=5, message_ttl=1_000))
    assert (row(desk, "orders").length_max, row(desk, "orders").message_ttl_ms) == (5, 1_000)
    assert row(desk, "other").length_max is None
    put(desk, policy("short", "^ord", max_length=7))
    assert (row(desk, "orders").length_max, row(desk, "orders").message_ttl_ms) == (7, None)
    apply(desk, desk.topology.clear_policy("/", "short"))
    assert row(desk, "orders").length_max is None


def test_only_what_changes_is_told(desk: Desk) -> None:
    def told(one: ResourcePolicy) -> list[str]:
        rows = [*chain.from_iterable(desk.topology.set_policy(one))]
        assert all(isinstance(change, DeclareQueue) for change in rows)
        return [change.name for change in rows if isinstance(change, DeclareQueue)]

    desk.succeed(queue("a"))
    desk.succeed(queue("b"))
    assert told(policy("p", "^a$", max_length=1)) == ["a"]
    assert told(policy("p", "^a$", max_length=1)) == []
    assert told(policy("low", "^[ab]$", max_length=9, priority=-1)) == ["b"]


def test_a_queue_that_is_made_later_has_it(desk: Desk) -> None:
    put(desk, policy("p", "^q", expires=60_000, overflow="reject-publish"))
    desk.succeed(queue("q1"))
    assert (row(desk, "q1").expires_ms, row(desk, "q1").overflow) == (60_000, "reject-publish")
    # Declaring it again counts as use: the kernel gets the same row, not that of the bare arguments.
    changes = desk.ask(queue("q1"))
    assert changes[0] == row(desk, "q1")
    desk.succeed(delete_queue("q1"))


def test_one_policy_applies_the_one_of_the_highest_priority(desk: Desk) -> None:
    desk.succeed(queue("q"))
    put(desk, policy("b", "q", max_length=1), policy("a", "q", message_ttl=5, priority=3))
    put(desk, policy("c", "q", max_length=2, priority=2))
    applied = desk.topology.applied(desk.topology.queues("/")[0])
    assert (applied.policy, applied.operator_policy, applied.definition) == ("a", None, {"message-ttl": 5})
    assert (row(desk, "q").length_max, row(desk, "q").message_ttl_ms) == (None, 5)


def test_it_is_known_to_how_many_objects_each_applies(desk: Desk) -> None:
    low, high = policy("low", "", max_length=1), policy("high", "^q", max_length=1, priority=1)

    def counts() -> list[tuple[int, int]]:
        return [desk.topology.count_applied(one) for one in (low, high)]

    fixed = len(desk.topology.exchanges("/"))
    desk.succeed(queue("q1"))
    desk.succeed(queue("other"))
    put(desk, low)
    assert counts() == [(2, fixed), (0, 0)]
    put(desk, high)  # the same definition: the kernel hears nothing of it
    desk.succeed(queue("q2"))
    assert counts() == [(1, fixed), (2, 0)]
    desk.succeed(delete_queue("q1"))
    assert counts() == [(1, fixed), (1, 0)]
    apply(desk, desk.topology.clear_policy("/", "high"))
    assert counts() == [(2, fixed), (0, 0)]


def test_of_a_bound_in_an_argument_and_a_policy_the_smaller_counts(desk: Desk) -> None:
    desk.succeed(queue("small", x_max_length=3, x_message_ttl=10, x_expires=100))
    desk.succeed(queue("large", x_max_length=300, x_message_ttl=1_000, x_expires=10_000))
    put(desk, policy("p", "", max_length=30, message_ttl=100, expires=1_000))
    small, large = row(desk, "small"), row(desk, "large")
    assert (small.length_max, small.message_ttl_ms, small.expires_ms) == (3, 10, 100)
    assert (large.length_max, large.message_ttl_ms, large.expires_ms) == (30, 100, 1_000)


def test_an_argument_wins_where_it_is_no_bound(desk: Desk) -> None:
    desk.succeed(queue("own", x_dead_letter_exchange="mine", x_overflow="drop-head", x_durability="memory"))
    desk.succeed(queue("bare"))
    desk.succeed(exchange("x", alternate_exchange="mine"))
    desk.succeed(exchange("y"))
    keys = {"dead_letter_exchange": "dlx", "dead_letter_routing_key": "k", "overflow": "reject-publish"}
    put(desk, policy("p", ".*", **keys, alternate_exchange="ae", durability="write"))
    own, bare = row(desk, "own"), row(desk, "bare")
    assert (own.dead_letter_exchange, own.dead_letter_key, own.overflow) == ("mine", "k", "drop-head")
    assert own.durability == "memory"
    assert (bare.dead_letter_exchange, bare.overflow, bare.durability) == ("dlx", "reject-publish", "write")
    assert (exchange_row(desk, "x").alternate, exchange_row(desk, "y").alternate) == ("mine", "ae")
    apply(desk, desk.topology.clear_policy("/", "p"))
    assert (exchange_row(desk, "x").alternate, exchange_row(desk, "y").alternate) == ("mine", None)


def test_an_operator_policy_bounds_what_others_set(desk: Desk) -> None:
    desk.succeed(queue("q", x_message_ttl=500))
    put(desk, policy("user", "q", max_length=100, overflow="reject-publish", delivery_limit=-1))
    put(desk, policy("op", "q", operator=True, max_length=50, expires=9, overflow="drop-head", delivery_limit=4))
    assert (row(desk, "q").length_max, row(desk, "q").expires_ms, row(desk, "q").message_ttl_ms) == (50, 9, 500)
    assert (row(desk, "q").overflow, row(desk, "q").delivery_limit) == ("drop-head", 4)
    applied = desk.topology.applied(desk.topology.queues("/")[0])
    assert (applied.policy, applied.operator_policy) == ("user", "op")
    apply(desk, desk.topology.clear_policy("/", "op", operator=True))
    assert (row(desk, "q").length_max, row(desk, "q").expires_ms) == (100, None)


@pytest.mark.parametrize(
    ("apply_to", "matched"),
    [
        ("all", {"classic", "quorum", "stream", "topic"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("exchanges", {"topic"}),
    ],
)
def test_apply_to_chooses_by_type(desk: Desk, apply_to: str, matched: set[str]) -> None:
    desk.succeed(queue("classic", durable=True))
    desk.succeed(queue("quorum", durable=True, x_queue_type="quorum"))
    desk.succeed(queue("stream", durable=True, x_queue_type="stream"))
    desk.succeed(exchange("topic", "topic"))
    put(desk, policy("p", "^[a-z]+$", apply_to=apply_to, barrier="message-id"))
    everything = [*desk.topology.queues("/"), *desk.topology.exchanges("/")]
    assert {one.name for one in everything if desk.topology.applied(one).policy} == matched
    rows = [*desk.kernel.queues.values(), *desk.kernel.exchanges.values()]
    assert {one.name for one in rows if one.barrier is not None} == matched


def test_a_policy_with_what_a_type_lacks_is_not_for_it(desk: Desk) -> None:
    desk.succeed(queue("stream", durable=True, x_queue_type="stream", x_max_age="1D"))
    desk.succeed(queue("classic"))
    put(desk, policy("ttl", ".*", message_ttl=5, max_length=1, priority=9), policy("age", ".*", max_age="2h"))
    kept = row(desk, "stream").stream
    assert kept is not None
    assert (kept.age_ms_max, kept.count_max) == (2 * 3_600_000, None)
    assert row(desk, "classic").length_max == 1


def test_what_a_barrier_remembers_keeps_its_number(desk: Desk) -> None:
    desk.succeed(queue("q", durable=True))
    put(desk, policy("once", "q", barrier="header:id", barrier_window=5_000))
    barrier = row(desk, "q").barrier
    assert barrier is not None
    assert (barrier.key, barrier.window_ms, barrier.number) == ("header:id", 5_000, row(desk, "q").number)


def test_a_stream_is_not_tapped_into_itself(desk: Desk) -> None:
    desk.succeed(queue("audit", durable=True, x_queue_type="stream"))
    desk.succeed(queue("q"))
    put(desk, policy("watch", ".*", apply_to="queues", tap="audit"))
    assert (row(desk, "audit").tap, row(desk, "q").tap) == (None, "audit")


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (policy("", "a", max_length=1), "name"),
        (policy("p", "a"), "definition"),
        (policy("p", "a", max_lenght=1), "max-lenght"),
        (policy("p", "a", max_length="many"), "max-length"),
        (policy("p", "a", max_length=-1), "max-length"),
        (policy("p", "a", max_age="soon"), "max-age"),
        (policy("p", "a", overflow="burst"), "overflow"),
        (policy("p", "a", barrier="luck"), "barrier"),
        (policy("p", "a", alternate_exchange=5), "alternate-exchange"),
        (policy("p", "a", max_length=1, apply_to="users"), "apply-to"),
        (policy("p", "a", max_length=1, priority=2**40), "priority"),
        (policy("p", "a", operator=True, dead_letter_exchange="x"), "operator"),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(desk: Desk, wrong: ResourcePolicy, word: str) -> None:
    with pytest.raises(Refused, match=word):
        desk.topology.set_policy(wrong)
    assert desk.topology.policies("/") == []
    assert desk.store.policies() == []


def test_keys_of_rabbitmq_that_mean_nothing_here_are_kept(desk: Desk) -> None:
    put(desk, policy("ha", "q", ha_mode="all", max_length=4))
    desk.succeed(queue("q"))
    assert row(desk, "q").length_max == 4
    assert desk.topology.policies("/")[0].definition == {"ha-mode": "all", "max-length": 4}


def test_unknown_ones_cannot_be_cleared(desk: Desk) -> None:
    put(desk, policy("p", "a", max_length=1))
    with pytest.raises(Refused) as refused:
        desk.topology.clear_policy("/", "p", operator=True)
    assert refused.value.code == 404


def test_policies_survive_and_go_with_their_virtual_host(tmp_path: Path) -> None:
    path = tmp_path / "definitions"
    desk = Desk(path)
    desk.succeed(queue("kept", durable=True))
    put(desk, policy("p", "kept", max_length=2), policy("o", "", operator=True, max_length=1, priority=4))
    desk.store.close()
    again = Desk(path)
    assert row(again, "kept").length_max == 1
    assert {(one.name, one.operator, one.priority) for one in again.topology.policies("/")} == {
        ("p", False, 0),
        ("o", True, 4),
    }
    with again.store.transaction():
        again.store.delete_vhost("/")
    assert again.store.policies() == []
    again.store.close()


def test_what_happens_between_two_parts_is_kept(desk: Desk) -> None:
    for number in range(500):
        desk.succeed(queue(f"q{number:03}"))
    first = desk.topology.set_policy(policy("p", "^q", max_length=5))
    desk.kernel.apply(next(first))  # the exchanges
    desk.kernel.apply(next(first))
    desk.succeed(delete_queue("q300"))
    desk.succeed(queue("q500"))
    second = desk.topology.set_policy(policy("high", "^q4", max_length=7, priority=1))
    apply(desk, chain(first, second))
    lengths = {name: one.length_max for (_, name), one in desk.kernel.queues.items()}
    assert "q300" not in lengths
    assert all(length == (7 if name.startswith("q4") else 5) for name, length in lengths.items())


def test_a_virtual_host_may_go_between_two_parts(desk: Desk) -> None:
    desk.kernel.apply(desk.topology.add_vhost("v"))
    desk.kernel.apply(desk.topology.declare_queue("v", "q"))
    parts = desk.topology.set_policy(ResourcePolicy("v", "p", "", {"max-length": 1}))
    desk.kernel.apply(desk.topology.delete_vhost("v"))
    apply(desk, parts)
    assert ("v", "q") not in {key for key, one in desk.kernel.queues.items() if one.length_max}
