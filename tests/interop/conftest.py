"""Fixtures shared by the interop tests: names, connections, channels.

Owns the life of client connections in a test: whatever a test opens through `connect` is closed when the test ends,
so exclusive queues go with it. In goes the `broker` fixture, out come pika connections and channels. It must not
declare anything on the broker by itself. Every test gets a time limit here, because a broker that hangs must fail a
test, not the whole run.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .proton10 import Client10
from .raw091 import RawConnection

TEST_TIMEOUT_S = 45
HERE = Path(__file__).parent

Connect = Callable[..., pika.BlockingConnection]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[..., str]:
    """A function that gives a new name at each call, unique on the broker and readable in its log."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    run, numbers = uuid.uuid4().hex[:8], itertools.count(1)
    return lambda suffix="": f"{stem}.{run}.{next(numbers)}{'.' if suffix else ''}{suffix}"


@pytest.fixture
def connect(broker: Any) -> Iterator[Connect]:
    """A function that opens a pika connection; keyword arguments are pika's connection parameters."""
    opened: list[pika.BlockingConnection] = []

    def open_connection(*, user: str = "guest", password: str = "guest", **parameters: Any) -> pika.BlockingConnection:
        parameters.setdefault("heartbeat", 0)
        parameters.setdefault("blocked_connection_timeout", 20)
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                broker.host,
                broker.port,
                credentials=pika.PlainCredentials(user, password),
                connection_attempts=1,
                **parameters,
            )
        )
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect: Connect) -> pika.BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def raw(broker: Any) -> Iterator[RawConnection]:
    """A bare AMQP 0-9-1 connection with channel 1 open."""
    with RawConnection(broker.host, broker.port) as peer:
        peer.open().open_channel(1)
        yield peer


@pytest.fixture
def connect10(broker: Any) -> Iterator[Callable[..., Client10]]:
    """A function that opens an AMQP 1.0 connection; keyword arguments are those of `Client10`."""
    opened: list[Client10] = []

    def open_connection(**options: Any) -> Client10:
        opened.append(Client10(broker, **options))
        return opened[-1]

    yield open_connection
    for client in opened:
        client.__exit__()


@pytest.fixture
def client10(connect10: Callable[..., Client10]) -> Client10:
    return connect10()
