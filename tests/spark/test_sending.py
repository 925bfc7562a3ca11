"""Sending from a task: at a pace that holds however late rows come, and whether anybody listens or not."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest

import peers
from spark.nodes import channel
from weft.client.links import Outlet
from weft.model.errors import Undelivered
from weft.spark import sending
from weft.spark.options import write_options
from weft.spark.sending import Outbox


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Peer]:
    peer = peers.start_weft(tmp_path_factory.mktemp("node") / "data")
    with channel(peer) as opened:
        opened.exchange_declare("topics", "topic", durable=True)
        opened.queue_declare("heard", durable=True)
        opened.queue_bind("heard", "topics", "heard.#")
    yield peer
    assert peer.stop() == 0, peer.output.text()


def rows(count: int, key: str = "heard.x") -> pa.RecordBatch:
    return pa.record_batch({"body": [b"x"] * count, "exchange": ["topics"] * count, "routing_key": [key] * count})


def outbox(node: peers.Peer, *, heedless: bool = False, **options: object) -> Outbox:
    url = f"amqp://{node.host}:{node.port}"
    given = {"url": url} | {key: str(value) for key, value in options.items()}
    return Outbox(write_options(given), heedless=heedless)


def waiting(node: peers.Peer) -> int:
    with channel(node) as opened:
        method = opened.queue_purge("heard").method
        return int(method.message_count)


def test_rows_that_come_late_do_not_go_all_at_once(node: peers.Peer) -> None:
    with outbox(node, ratePerSecond=100) as out:
        out._due -= 10.0  # as if the first had taken so long to come
        began = monotonic()
        out.send(rows(50), "late", 0)
        assert monotonic() - began > 0.3
    assert waiting(node) == 50


def test_a_pace_may_take_longer_than_a_confirm(node: peers.Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "CONFIRM_TIMEOUT_S", 0.1)
    left: list[float] = []
    send = Outlet.send_encoded

    def noted(self: Outlet, messages: Any, count_max: int, ticket: Any) -> int:
        left.append(ticket.deadline - monotonic())
        return send(self, messages, count_max, ticket)

    monkeypatch.setattr(Outlet, "send_encoded", noted)
    with outbox(node, ratePerSecond=100) as out:
        out.send(rows(30), "slow", 0)
    assert min(left) > 0, "every message has its time, though its batch took longer"
    assert waiting(node) == 30


def test_that_nobody_listens_is_an_error_or_is_counted(node: peers.Peer) -> None:
    with pytest.raises(Undelivered), outbox(node) as out:
        out.send(rows(3, "unheard"), "one", 0)
    with outbox(node, heedless=True) as out:
        out.send(pa.concat_batches([rows(3, "unheard"), rows(4), rows(2, "unheard")]), "two", 0)
    assert out.unheard == 5
    assert waiting(node) == 4, "and what somebody listens to arrives"
