"""`weft pipeline replay`: what is found is shown, or sent to a real node again, marked, at a pace and once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pika
import pytest

import peers
from spark.nodes import channel, declare_stream
from weft.cli import main
from weft.pipeline.audit import REPLAY, REPLAY_OF

PAID, RATE = 20, 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[peers.Peer]:
    """Payments in a stream, which whatever is replayed comes into again, as well as into a queue behind a barrier."""
    peer = peers.start_weft(tmp_path / "node")
    declare_stream(peer, "orders")
    with channel(peer) as opened:
        opened.exchange_declare("shop", "topic", durable=True)
        opened.queue_bind("orders", "shop", "#")
        for number in range(PAID):
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}", headers={"tenant": "x"})
            opened.basic_publish("shop", "order.paid", b"paid %d" % number, properties)
        opened.basic_publish("shop", "order.\x1b[2Jsent", b"sent", pika.BasicProperties(delivery_mode=2))
        opened.queue_declare("again", durable=True, arguments={"x-barrier": "message-id"})
        opened.queue_bind("again", "shop", "#")
    yield peer
    assert peer.stop() == 0, peer.output.text()


def taken(node: peers.Peer) -> list[tuple[Any, Any, bytes]]:
    found = []
    with channel(node) as opened:
        while (message := opened.basic_get("again", auto_ack=True))[0] is not None:
            found.append(message)
    return found


@pytest.mark.usefixtures("spark")
def test_found_and_sent_again(tmp_path: Path, node: peers.Peer, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "replay", "--name", "refund", "--data-dir", str(tmp_path / "node")]
    assert main(words) == 0
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) == PAID + 1
    assert "\x1b" not in listed, "a key is shown, not obeyed"
    assert taken(node) == [], "nothing is sent that was only looked for"

    url = f"amqp://{node.host}:{node.port}"
    words += ["--match-address", "order.p*", "--header", "tenant=x", "--to", url, "--rate", str(RATE)]
    began = monotonic()
    assert main(words) == 0
    assert monotonic() - began > PAID / RATE - 0.2
    assert f"{PAID} messages sent again as replay refund" in capsys.readouterr().out
    found = taken(node)
    assert [body for *_, body in found] == [b"paid %d" % number for number in range(PAID)], "in their order"
    for number, (method, properties, _) in enumerate(found):
        assert (method.exchange, method.routing_key) == ("shop", "order.paid")
        assert properties.message_id == f"replay:refund:orders/0/{number}"
        marks = {"tenant": "x", REPLAY: "refund", REPLAY_OF: f"m{number}"}
        assert marks.items() <= properties.headers.items()

    assert main(words) == 0
    assert f"{PAID} messages" in capsys.readouterr().out, "its own copies are in the stream now, and are not repeated"
    assert taken(node) == [], "the same replay sends the same ids, which the barrier knows"

    assert main([*words, "--name", "one", "--message-id", "m3", "--address", "again"]) == 0
    ((method, _, body),) = taken(node)
    assert (method.exchange, method.routing_key, body) == ("", "again", b"paid 3")
