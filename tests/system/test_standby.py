"""A node that stands by takes the folder of one that ended.

Owns what clients see of it: everything that was confirmed, at the other node's address. It must never rely on how fast
that is; `make bench ARGS="--only backlog"` tells. Rule: docs/guides/operations.md, "A second node that takes over".
"""

from __future__ import annotations

import time

import pika

import peers
from interop.support import depth, receive

from .conftest import StartNode
from .living import PERSISTENT, WAIT_S

COUNT = 200


def test_it_serves_what_the_first_one_confirmed(start_node: StartNode) -> None:
    first = start_node(None, "--name", "pair")
    channel = first.channel(confirms=True)
    channel.queue_declare("orders", durable=True)
    for number in range(COUNT):
        channel.basic_publish("", "orders", b"%d" % number, PERSISTENT)
    waiting = [peers.start_standby(first.folder, "--name", "pair") for _ in range(2)]
    try:
        assert all("belongs to another node that is running" in peer.output.text() for peer in waiting)
        first.kill()
        serving = next_to_serve(waiting)
        with pika.BlockingConnection(pika.ConnectionParameters(serving.host, serving.port)) as connection:
            taken = connection.channel()
            assert depth(taken, "orders") == COUNT
            assert [delivery.body for delivery in receive(taken, "orders", 3)] == [b"0", b"1", b"2"]
        [other] = [peer for peer in waiting if peer is not serving]
        assert other.stop() == 0, "one that still waits ends in peace"
        assert "ready" not in other.output.text()
    finally:
        for peer in waiting:
            peer.kill()


def next_to_serve(waiting: list[peers.Peer]) -> peers.Peer:
    """The one of them that got the folder."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for peer in waiting:
            if "\nready" in peer.output.text():
                return peer
        time.sleep(0.01)
    raise AssertionError([peer.output.text() for peer in waiting])
