"""AMQP 1.0 frame by frame: what no library would do, and what libraries do behind one's back.

Owns the rules of the transport that Proton either follows silently or cannot express: headers, framing errors,
handles, windows, interleaved transfers, suspended links that resume. Bytes go out on a bare socket; the performatives
that come back are compared. Queues are made and looked at with pika. Rules: AMQP 1.0 part 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Described, ulong

from . import raw10
from .raw10 import ACCEPTED, Raw10, condition, encode, frame, message, uint
from .support import publish, shared_queue, take_all, wait_depth

pytestmark = pytest.mark.weft_only
Name = Callable[..., str]


@pytest.fixture
def fresh(broker: Any) -> Iterator[Raw10]:
    """A socket on which nothing has been said yet."""
    with Raw10(broker.host, broker.port) as peer:
        yield peer


@pytest.fixture
def peer(fresh: Raw10) -> Raw10:
    """An open connection with a session on channel 0."""
    fresh.open().begin()
    return fresh


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return shared_queue(channel, name("queue"))


# --- opening ---


@pytest.mark.parametrize("header", [b"AMQP\x00\x02\x00\x00", b"AMQP\x03\x01\x01\x00", b"AMQP\x02\x01\x00\x00"])
def test_header_the_node_does_not_speak(fresh: Raw10, header: bytes) -> None:
    fresh.send(header)
    assert fresh.read_bytes(8).startswith(b"AMQP")  # one it does speak
    assert fresh.read_bytes(1) == b""


def test_everything_in_one_packet(fresh: Raw10, channel: BlockingChannel, queue: str) -> None:
    performatives: list[tuple[int, list[Any], bytes]] = [
        (raw10.OPEN, ["eager"], b""),
        (raw10.BEGIN, [None, uint(0), uint(100), uint(100)], b""),
        (
            raw10.ATTACH,
            [
                "link",
                uint(0),
                False,
                None,
                None,
                Described(ulong(0x28), []),
                Described(ulong(0x29), [queue]),
                None,
                None,
                uint(0),
            ],
            b"",
        ),
        (raw10.TRANSFER, [uint(0), uint(0), b"t", uint(0), True], message(b"at once")),
        (raw10.CLOSE, [], b""),
    ]
    fresh.send(
        raw10.HEADER
        + b"".join(
            frame(0, encode(Described(ulong(code), fields)) + payload) for code, fields, payload in performatives
        )
    )
    assert fresh.read_bytes(8) == raw10.HEADER
    for code in (raw10.OPEN, raw10.BEGIN, raw10.ATTACH):
        fresh.expect(code)
    assert condition(fresh.expect(raw10.CLOSE)) == ""
    wait_depth(channel, queue, 1)


def test_byte_by_byte(fresh: Raw10) -> None:
    opening = raw10.HEADER + frame(0, encode(Described(ulong(raw10.OPEN), ["slow"])))
    for byte in opening:
        fresh.send(bytes([byte]))
    assert fresh.read_bytes(8) == raw10.HEADER
    fresh.expect(raw10.OPEN)


# --- broken rules ---


def perform(code: int, *fields: Any, channel: int = 0) -> Callable[[Raw10], None]:
    return lambda peer: peer.perform(code, *fields, channel=channel)


def attach_twice(peer: Raw10) -> None:
    for name in ("first", "second"):
        source, target = Described(ulong(0x28), []), Described(ulong(0x29), [])
        peer.perform(raw10.ATTACH, name, uint(5), False, None, None, source, target, None, None, uint(0))


BROKEN: list[tuple[str, Callable[[Raw10], Any], int, set[str]]] = [
    (
        "doff",
        lambda peer: peer.send(struct.pack(">IBBH", 9, 1, 0, 0) + b"x"),
        raw10.CLOSE,
        {"amqp:connection:framing-error"},
    ),
    ("size", lambda peer: peer.send(struct.pack(">IBBH", 4, 2, 0, 0)), raw10.CLOSE, {"amqp:connection:framing-error"}),
    (
        "huge",
        lambda peer: peer.send(struct.pack(">IBBH", 1 << 30, 2, 0, 0)),
        raw10.CLOSE,
        {"amqp:connection:framing-error"},
    ),
    (
        "garbage",
        lambda peer: peer.send(frame(0, b"\xff\xff\xff")),
        raw10.CLOSE,
        {"amqp:decode-error", "amqp:connection:framing-error"},
    ),
    (
        "unknown",
        perform(0x7F),
        raw10.CLOSE,
        {"amqp:decode-error", "amqp:not-implemented", "amqp:connection:framing-error"},
    ),
    (
        "open-again",
        perform(raw10.OPEN, "again"),
        raw10.CLOSE,
        {"amqp:illegal-state", "amqp:not-allowed", "amqp:connection:framing-error"},
    ),
    (
        "channel-unmapped",
        perform(raw10.END, channel=9),
        raw10.CLOSE,
        {"amqp:illegal-state", "amqp:not-allowed", "amqp:not-found", "amqp:connection:framing-error"},
    ),
    (
        "name-missing",
        perform(raw10.ATTACH, None, uint(0), False),
        raw10.CLOSE,
        {"amqp:decode-error", "amqp:invalid-field", "amqp:connection:framing-error"},
    ),
    (
        "transfer-unattached",
        perform(raw10.TRANSFER, uint(7), uint(0), b"t", uint(0), True),
        raw10.END,
        {"amqp:session:unattached-handle"},
    ),
    ("detach-unattached", perform(raw10.DETACH, uint(7), True), raw10.END, {"amqp:session:unattached-handle"}),
]


@pytest.mark.parametrize(("send", "code", "conditions"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN])
def test_broken_rule(peer: Raw10, send: Callable[[Raw10], Any], code: int, conditions: set[str]) -> None:
    send(peer)
    assert condition(peer.expect(code)) in conditions


def test_handle_in_use(peer: Raw10) -> None:
    attach_twice(peer)
    peer.expect(raw10.ATTACH)
    assert condition(peer.expect(raw10.END)) == "amqp:session:handle-in-use"


# --- windows and frames ---


def test_session_window_is_respected(fresh: Raw10, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, *(b"%d" % number for number in range(10)))
    wait_depth(channel, queue, 10)
    fresh.open().begin(window=3)
    fresh.attach("link", 0, queue, sends=False)
    fresh.credit(0, 100, window=3)
    for number in range(3):
        assert fresh.expect(raw10.TRANSFER).payload.endswith(b"%d" % number)
    fresh.perform(raw10.BEGIN, None, uint(0), uint(10), uint(10), channel=1)
    fresh.expect(raw10.BEGIN)  # a round trip, and no fourth transfer before it
    fresh.credit(0, 97, window=2, next_id=3, delivered=3)
    for number in range(3, 5):
        assert fresh.expect(raw10.TRANSFER).payload.endswith(b"%d" % number)


def test_transfers_of_two_links_may_interleave(peer: Raw10, channel: BlockingChannel, queue: str, name: Name) -> None:
    other = shared_queue(channel, name("other"))
    peer.attach("large", 0, queue, sends=True)
    peer.attach("small", 1, other, sends=True)
    whole = message(b"x" * 1000)
    peer.transfer(0, 0, whole[:400], more=True)
    peer.transfer(1, 1, message(b"between"), settled=True)
    peer.perform(raw10.TRANSFER, uint(0), None, None, None, None, True, payload=whole[400:700])
    peer.perform(raw10.TRANSFER, uint(0), None, None, None, None, False, payload=whole[700:])
    peer.expect(raw10.DISPOSITION)
    assert take_all(channel, other) == [b"between"]
    assert take_all(channel, queue) == [b"x" * 1000]


def test_frames_are_no_larger_than_the_peer_takes(fresh: Raw10, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, bytes(5000))
    fresh.open(frame_bytes_max=512).begin()
    fresh.attach("link", 0, queue, sends=False)
    fresh.credit(0, 1)
    size = 0
    while True:
        transfer = fresh.expect(raw10.TRANSFER)
        assert len(transfer.payload) < 512
        size += len(transfer.payload)
        if not transfer.field(5):
            break
    assert size >= 5000


def test_flow_with_echo_is_answered(peer: Raw10, queue: str) -> None:
    peer.attach("link", 0, queue, sends=False)
    peer.perform(raw10.FLOW, uint(0), uint(10), uint(0), uint(10), uint(0), uint(0), uint(0), None, False, True)
    answer = peer.expect(raw10.FLOW)
    while answer.field(4) is None:
        answer = peer.expect(raw10.FLOW)
    assert answer.field(4) == 0


def test_a_settled_message_to_nowhere_ends_its_anonymous_link(peer: Raw10) -> None:
    """Nothing else could tell the sender (anonymous terminus extension, section 2.2.2)."""
    fields = ["anonymous", uint(0), False, None, None, Described(ulong(0x28), []), Described(ulong(0x29), [])]
    peer.perform(raw10.ATTACH, *fields, None, False, uint(0))
    peer.expect(raw10.ATTACH)
    to = encode(Described(ulong(0x73), [None, None, "/queues/nowhere"]))
    peer.transfer(0, 0, to + message(b"x"))
    assert int(peer.expect(raw10.DISPOSITION).field(4).descriptor) == 0x25
    peer.transfer(0, 1, to + message(b"x"), tag=b"tag", settled=True)
    detach = peer.expect(raw10.DETACH)
    assert raw10.condition(detach) == "amqp:not-found"
    assert {str(key): value for key, value in detach.field(2).value[2].items()} == {"delivery-tag": b"tag"}


# --- links that come back ---


def test_sender_resumes_and_learns_the_outcome(peer: Raw10, channel: BlockingChannel, queue: str) -> None:
    peer.attach("link", 0, queue, sends=True, second=True)
    peer.transfer(0, 0, message(b"once"), tag=b"tag")
    disposition = peer.expect(raw10.DISPOSITION)
    assert disposition.field(4) == ACCEPTED
    peer.detach(0, closed=False)  # without having settled
    attach = peer.attach("link", 0, queue, sends=True, second=True, unsettled={b"tag": None})
    assert attach.field(7) == {b"tag": ACCEPTED}
    assert take_all(channel, queue) == [b"once"]


def suspended_delivery(peer: Raw10, queue: str) -> bytes:
    """Receive one message, settle nothing, detach; the delivery's tag."""
    peer.attach("link", 0, queue, sends=False)
    peer.credit(0, 1)
    transfer = peer.expect(raw10.TRANSFER)
    peer.detach(0, closed=False)
    return bytes(transfer.field(2))


def test_receiver_resumes_with_an_outcome(peer: Raw10, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"done")
    tag = suspended_delivery(peer, queue)
    attach = peer.attach("link", 0, queue, sends=False, unsettled={tag: ACCEPTED})
    assert list(attach.field(7)) == [tag]
    peer.credit(0, 1, next_id=1)
    resumed = peer.expect(raw10.TRANSFER)
    assert (resumed.field(2), resumed.field(4), resumed.field(8)) == (tag, True, True)
    peer.detach(0, closed=True)
    wait_depth(channel, queue, 0)


def test_receiver_that_forgot_gets_the_message_anew(peer: Raw10, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"again")
    suspended_delivery(peer, queue)
    peer.attach("link", 0, queue, sends=False)
    peer.credit(0, 1)
    assert peer.expect(raw10.TRANSFER).payload.endswith(b"again")


def test_receiver_that_knows_only_the_tag_gets_the_message_under_it(
    peer: Raw10, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"still")
    tag = suspended_delivery(peer, queue)
    peer.attach("link", 0, queue, sends=False, unsettled={tag: None})
    peer.credit(0, 1, next_id=1)
    resumed = peer.expect(raw10.TRANSFER)
    assert (resumed.field(2), resumed.field(8), resumed.payload[-5:]) == (tag, True, b"still")
    peer.perform(raw10.DISPOSITION, True, resumed.field(1), None, True, ACCEPTED)
    peer.detach(0, closed=True)
    wait_depth(channel, queue, 0)


def test_a_half_sent_message_goes_on(peer: Raw10, channel: BlockingChannel, queue: str) -> None:
    peer.attach("link", 0, queue, sends=True)
    whole = message(b"x" * 1000)
    peer.transfer(0, 0, whole[:300], tag=b"tag", more=True)
    peer.detach(0, closed=False)
    attach = peer.attach("link", 0, queue, sends=True, unsettled={b"tag": None})
    received = attach.field(7)[b"tag"]
    assert (int(received.descriptor), [int(number) for number in received.value]) == (0x23, [0, 300])
    fields = [uint(0), uint(1), b"tag", uint(0), False, False, None, None, True]
    peer.perform(raw10.TRANSFER, *fields, payload=whole[300:])
    assert peer.expect(raw10.DISPOSITION).field(4) == ACCEPTED
    assert take_all(channel, queue) == [b"x" * 1000]


def test_suspended_delivery_is_nobody_elses_until_the_connection_ends(
    peer: Raw10, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"held")
    suspended_delivery(peer, queue)
    wait_depth(channel, queue, 0)
    peer.socket.close()
    wait_depth(channel, queue, 1)
