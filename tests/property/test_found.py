"""What the machine has found, as the shortest story of each: these run always, whatever Hypothesis draws.

Owns one test per defect, named for what must hold. A node in this process and the peers of this folder are all it
uses.
"""

from __future__ import annotations

from pamqp import commands
from proton import Delivery, Described, Message, ulong

from property.node import Node
from property.peer091 import Peer091
from property.peer10 import Peer10
from property.test_transactions import DECLARE, DISCHARGE

MS = 1_000_000


def queue_with_a_clock_behind_the_head(node: Node) -> tuple[Peer091, int]:
    """The head lives for ever, the one behind it for 3 ms; what dies goes to `dead`."""
    peer = Peer091(node)
    channel = peer.open_channel()
    peer.declare_queue(channel, "dead")
    peer.declare_queue(channel, "q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    peer.publish(channel, "", "q", b"head")
    peer.publish(channel, "", "q", b"timed", expiration="3")
    return peer, channel


def test_a_message_that_becomes_the_head_by_get_dies_in_time() -> None:
    with Node() as node:
        peer, channel = queue_with_a_clock_behind_the_head(node)
        assert peer.get(channel, "q") is not None
        node.advance(node.now_ns + 4 * MS)
        assert node.engine.queue_stats("/", "q") == (0, 1, 0)
        assert node.engine.queue_stats("/", "dead") == (1, 0, 0)


def test_a_message_that_became_the_head_after_its_time_dies_at_once() -> None:
    with Node() as node:
        peer, channel = queue_with_a_clock_behind_the_head(node)
        node.advance(node.now_ns + 4 * MS)
        assert node.engine.queue_stats("/", "q") == (2, 0, 0)
        assert peer.get(channel, "q") is not None
        assert node.engine.queue_stats("/", "q") == (0, 1, 0)
        assert node.engine.queue_stats("/", "dead") == (1, 0, 0)


def test_a_message_that_becomes_the_head_by_delivery_dies_in_time() -> None:
    with Node() as node:
        peer, channel = queue_with_a_clock_behind_the_head(node)
        peer.call(channel, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        peer.call(channel, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        node.advance(node.now_ns + 4 * MS)
        assert node.engine.queue_stats("/", "q") == (0, 1, 1)
        assert node.engine.queue_stats("/", "dead") == (1, 0, 0)


def test_dead_letters_are_not_refused_while_a_consumer_waits_for_them() -> None:
    with Node() as node:
        peer = Peer091(node)
        channel, other = peer.open_channel(), peer.open_channel()
        peer.declare_queue(channel, "dead", {"x-max-length": 1, "x-overflow": "reject-publish"})
        peer.declare_queue(channel, "q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        for body in (b"1", b"2", b"3"):
            peer.publish(channel, "", "q", body)
            assert peer.get(channel, "q") is not None
        peer.call(other, commands.Basic.Consume(queue="dead", no_ack=True), commands.Basic.ConsumeOk)
        peer.send(channel, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False))
        assert [content.body for content in peer.take(other, commands.Basic.Deliver)] == [b"1", b"2", b"3"]


def test_each_dead_letter_is_weighed_alone() -> None:
    """Two die at once and reach a full queue, whose second message is past its time: the first of them lays that open,
    and there is room for the other.
    """
    with Node() as node:
        peer = Peer091(node)
        channel = peer.open_channel()
        peer.declare_queue(channel, "last")
        ending = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "last"}
        peer.declare_queue(channel, "dead", {"x-max-length": 2, "x-message-ttl": 12, **ending})
        peer.declare_queue(channel, "q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        peer.publish(channel, "", "dead", b"head")
        peer.publish(channel, "", "dead", b"timed", expiration="3")
        for body in (b"1", b"2"):
            peer.publish(channel, "", "q", body, expiration="3")
        node.advance(node.now_ns + 4 * MS)
        assert node.engine.queue_stats("/", "dead") == (2, 0, 0)
        died = [peer.get(channel, "last") for _ in range(2)]
        reasons = [one.properties.headers["x-death"][0]["reason"] for one in died if one is not None]
        assert reasons == ["maxlen", "expired"]


def test_a_publisher_is_answered_whatever_became_of_an_earlier_session_of_its_consumer() -> None:
    """A transaction outlives a session in which it retired a delivery; a later session has the same number, and in it a
    delivery of the same id. Its consumer must not be told that this one is settled: it would say no more of it, and who
    published it would wait for ever.
    """
    with Node() as node:
        maker, peer, publisher = Peer091(node), Peer10(node), Peer10(node)
        maker.declare_queue(maker.open_channel(), "q", {"x-ack": "end-to-end"})
        sender = publisher.sender(publisher.session(), "publisher", "q")
        control = peer.coordinator("control")
        declared = peer.send(control, Message(Described(ulong(DECLARE), [None])).encode())
        transaction = bytes(declared.remote.data[0])
        first = publisher.send(sender, b"\x00\x53\x75\xa0\x01a")
        session = peer.session()
        receiver = peer.receiver(session, "first", "q")
        peer.flow(receiver, 1)
        [(delivery, _)] = peer.take(receiver)
        peer.decide_in(transaction, delivery, Delivery.ACCEPTED)
        peer.sync()
        session.close()
        peer.sync()
        second = publisher.send(sender, b"\x00\x53\x75\xa0\x01b")
        receiver = peer.receiver(peer.session(), "second", "q")
        peer.flow(receiver, 1)
        [(delivery, _)] = peer.take(receiver)
        peer.send(control, Message(Described(ulong(DISCHARGE), [transaction, False])).encode())
        peer.settle(delivery, Delivery.ACCEPTED)
        publisher.sync()
        assert (first.remote_state, second.remote_state) == (Delivery.ACCEPTED, Delivery.ACCEPTED)
