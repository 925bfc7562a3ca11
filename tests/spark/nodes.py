"""Real nodes with streams in them, for the tests of this folder.

Owns filling and emptying streams over a plain client. It must never look at the files: that is what is tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pika

import peers


@contextmanager
def channel(node: peers.Peer) -> Iterator[Any]:
    """A channel in confirm mode."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    opened = connection.channel()
    opened.confirm_delivery()
    yield opened
    connection.close()


def declare_stream(node: peers.Peer, name: str, **arguments: object) -> None:
    """Make a stream."""
    with channel(node) as opened:
        opened.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})


def fill(node: peers.Peer, name: str, bodies: Sequence[bytes], **properties: Any) -> None:
    """Publish to a stream; returns when the node has confirmed all of it."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    opened = connection.channel()
    opened.tx_select()
    own = pika.BasicProperties(delivery_mode=2, **properties)
    for body in bodies:
        opened.basic_publish("", name, body, own)
    opened.tx_commit()
    connection.close()


def take(node: peers.Peer, queue: str) -> list[Any]:
    """The JSON bodies that wait in a queue, taken from it."""
    found = []
    with channel(node) as opened:
        while True:
            method, _, body = opened.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append(json.loads(body))
