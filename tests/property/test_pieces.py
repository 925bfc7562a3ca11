"""Bytes have no boundaries that mean anything, and bindings leave nothing behind.

Owns the smaller properties: a conversation fed in any pieces has the same result as fed whole; a message split over
frames of any size arrives as it was; an unbind takes back exactly its bind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from proton import Delivery, Message

from property.model import Binding, Model, Settings, topic_matches
from property.model import Message as Letter
from property.node import START_NS, Node
from property.peer091 import Peer091
from property.peer10 import Peer10, decode

cuts = st.lists(st.integers(1, 400), max_size=30)
words = st.sampled_from(["", "a", "b", "ab"])
keys = st.lists(words, min_size=1, max_size=5).map(".".join)
patterns = st.lists(st.one_of(words, st.sampled_from(["*", "#"])), min_size=1, max_size=5).map(".".join)
KINDS = ["direct", "topic", "fanout", "headers"]


class Recorder(Node):
    """A node that remembers what it was told, turn by turn: within a turn nothing depends on an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[bytes] = []

    def receive(self, conn: int, data: bytes) -> None:
        self.turns.append(data)
        super().receive(conn, data)


def conversation_091() -> list[bytes]:
    properties: dict[str, Any] = {"headers": {"text": "é", "list": [1, True, None]}, "message_id": "m"}
    with Recorder() as node:
        peer = Peer091(node)
        peer.send(
            1,
            commands.Channel.Open(),
            commands.Confirm.Select(),
            commands.Queue.Declare(queue="q"),
            commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.#"),
            *peer.content("amq.topic", "a.b", b"body" * 100, **properties),
            *peer.content("", "nowhere", b"", mandatory=True),
            *peer.content("amq.topic", "a", b""),
            commands.Basic.Consume(queue="q", consumer_tag="c"),
        )
        peer.send(1, commands.Basic.Ack(delivery_tag=1), commands.Basic.Reject(delivery_tag=2, requeue=False))
        peer.send(0, commands.Connection.Close(200, "", 0, 0))
        return node.turns


def conversation_10() -> list[bytes]:
    with Recorder() as node:
        peer = Peer10(node, frame_bytes_max=512)
        session = peer.session()
        sender = peer.sender(session, "s", "q")
        receiver = peer.receiver(session, "r", "q")
        peer.flow(receiver, 3)
        for size in (0, 10, 2_000):
            peer.send(sender, Message(b"x" * size, inferred=True, properties={"n": size}).encode())
        for delivery, _data in peer.take(receiver):
            peer.settle(delivery, Delivery.ACCEPTED)
        peer.connection.close()
        peer.sync()
        return node.turns


def answer(turns: list[bytes], sizes: list[int]) -> tuple[dict[str, int], bytes]:
    """What a node says to these turns when each comes in pieces of these sizes, and the rest of it in one."""
    with Node() as node:
        conn = node.open()
        for turn in turns:
            at = 0
            for size in sizes:
                if at < len(turn):
                    node.receive(conn, turn[at : at + size])
                at += size
            node.receive(conn, turn[at:])
        assert conn in node.closed
        return node.engine.stats(), bytes(node.output[conn])


@pytest.fixture(scope="module", params=[conversation_091, conversation_10])
def conversation(request: pytest.FixtureRequest) -> list[bytes]:
    turns: list[bytes] = request.param()
    return turns


@given(sizes=cuts)
def test_pieces_are_as_good_as_the_whole(conversation: list[bytes], sizes: list[int]) -> None:
    whole_stats, whole = answer(conversation, [])
    stats, pieces = answer(conversation, sizes)
    assert stats == whole_stats
    assert said(pieces) == said(whole)


def test_single_bytes_are_as_good_as_the_whole(conversation: list[bytes]) -> None:
    stats, pieces = answer(conversation, [1] * max(map(len, conversation)))
    whole_stats, whole = answer(conversation, [])
    assert stats == whole_stats
    assert said(pieces) == said(whole)


def said(output: bytes) -> list[bytes]:
    """Frames, without those that tell how confirms, outcomes and credit were batched: that follows the pieces."""
    if output.startswith(b"AMQP"):
        return [one for one in _frames_10(output[8:]) if one[8:11] not in (b"\0S\x13", b"\0S\x15")]
    return [one for one in _frames_091(output) if not isinstance(frame.unmarshal(one)[2], commands.Basic.Ack)]


def _frames_10(output: bytes) -> Iterator[bytes]:
    while output:
        size = int.from_bytes(output[:4])
        yield output[:size]
        output = output[size:]


def _frames_091(output: bytes) -> Iterator[bytes]:
    while output:
        size = frame.unmarshal(output)[0]
        yield output[:size]
        output = output[size:]


@given(
    size=st.integers(0, 5_000),
    sender_bytes=st.sampled_from([4_096, 5_000, 131_072]),
    receiver_bytes=st.sampled_from([4_096, 4_099, 131_072]),
)
def test_bodies_survive_any_frame_size_of_091(size: int, sender_bytes: int, receiver_bytes: int) -> None:
    body = bytes(index % 251 for index in range(size * 4))
    with Node() as node:
        sender, receiver = Peer091(node, frame_bytes_max=sender_bytes), Peer091(node, frame_bytes_max=receiver_bytes)
        channel, other = sender.open_channel(), receiver.open_channel()
        sender.declare_queue(channel, "q")
        sender.publish(channel, "", "q", body)
        content = receiver.get(other, "q")
        assert content is not None
        assert content.body == body


@given(
    size=st.integers(0, 5_000),
    sender_bytes=st.sampled_from([512, 513, 4_096]),
    receiver_bytes=st.sampled_from([512, 700, 4_096]),
)
def test_bodies_survive_any_frame_size_of_10(size: int, sender_bytes: int, receiver_bytes: int) -> None:
    body = bytes(index % 251 for index in range(size))
    with Node() as node:
        peer = Peer10(node, frame_bytes_max=sender_bytes)
        other = Peer10(node, frame_bytes_max=receiver_bytes)
        sender = peer.sender(peer.session(), "s", "q")
        receiver = other.receiver(other.session(), "r", "q")
        other.flow(receiver, 1)
        delivery = peer.send(sender, Message(body, inferred=True).encode())
        assert delivery.remote_state == Delivery.ACCEPTED
        [(_, data)] = other.take(receiver)
        assert bytes(decode(data).body) == body


@given(
    kind=st.sampled_from(KINDS),
    kept=st.lists(patterns, max_size=4),
    passing=st.lists(patterns, min_size=1, max_size=4),
    published=st.lists(keys, min_size=1, max_size=6),
)
def test_unbind_takes_back_its_bind(kind: str, kept: list[str], passing: list[str], published: list[str]) -> None:
    """Whatever was bound in between, routing is as if only what is left had ever been bound."""
    with Node() as node:
        engine, topology = node.engine, node.topology
        model = Model(START_NS)
        model.declare_exchange("x", kind)
        engine.apply(topology.declare_exchange("/", "x", kind))
        model.declare_queue("q", Settings())
        engine.apply(topology.declare_queue("/", "q"))
        for key in kept:
            model.bind(Binding("x", "queue", "q", key))
        rows = [*kept, *passing]
        for key in rows:
            engine.apply(topology.bind("/", "x", "q", key))
        for key in {*passing} - {*kept}:
            engine.apply(topology.unbind("/", "x", "q", key))
        for number, key in enumerate(published):
            expected = len(model.route("x", Letter(number, key)))
            assert engine.publish("/", "x", key, b"") == expected, key


headers = st.dictionaries(st.sampled_from("ab"), st.integers(0, 1))
bindings = st.tuples(st.sampled_from([("queue", "q"), ("exchange", "y")]), patterns, headers)


@given(
    kind=st.sampled_from(KINDS),
    kept=st.lists(bindings, max_size=4, unique_by=repr),
    passing=st.lists(bindings, min_size=1, max_size=4, unique_by=repr),
    published=st.lists(st.tuples(keys, headers), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_unbind_reverses_bind(kind: str, kept: list[Any], passing: list[Any], published: list[Any], order: Any) -> None:
    """After all that was bound has been unbound, in any order, every message goes where it went before."""
    with Node() as node:
        engine, topology = node.engine, node.topology
        engine.apply(topology.declare_exchange("/", "x", kind))
        engine.apply(topology.declare_exchange("/", "y", "fanout"))
        for queue in ("q", "behind y"):
            engine.apply(topology.declare_queue("/", queue))
        engine.apply(topology.bind("/", "y", "behind y"))

        def change(verb: Any, rows: list[Any]) -> None:
            for (to, name), key, arguments in rows:
                engine.apply(verb("/", "x", name, key, kind=to, arguments=arguments))

        def reached() -> list[tuple[int, ...]]:
            found = []
            for key, fields in published:
                engine.publish("/", "x", key, b"", {"headers": fields})
                found.append(tuple(engine.purge("/", queue) for queue in ("q", "behind y")))
            return found

        change(topology.bind, kept)
        before = reached()
        added = [row for row in passing if row not in kept]
        change(topology.bind, added)
        change(topology.unbind, order.sample(added, len(added)))
        assert reached() == before


@given(pattern=patterns, key=keys)
def test_topics_match_as_the_model_says(pattern: str, key: str) -> None:
    with Node() as node:
        node.engine.apply(node.topology.declare_queue("/", "q"))
        node.engine.apply(node.topology.bind("/", "amq.topic", "q", pattern))
        assert node.engine.publish("/", "amq.topic", key, b"") == topic_matches(pattern, key)
