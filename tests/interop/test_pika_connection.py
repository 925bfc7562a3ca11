"""Opening, tuning, refusing and closing connections, and channels in number.

Owns the handshake as clients see it: what the server says of itself, what is negotiated, how a refusal looks with and
without the client's `authentication_failure_close`. In go pika connections and bare sockets; out comes what the
client can act upon. Nothing here depends on queues or messages. Rules: AMQP 0-9-1 section 2.2.4 and RabbitMQ's
authentication failure notification.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import pika
import pytest
from pika import frame, spec
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError

from .conftest import Connect
from .raw091 import RawConnection
from .support import channel_error

CAPABILITIES = {
    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
    "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to",
}  # fmt: skip


@pytest.fixture
def fresh(broker: Any) -> Any:
    """A socket on which nothing has been said yet."""
    with RawConnection(broker.host, broker.port) as peer:
        yield peer


def refusal(peer: RawConnection) -> int | None:
    """How a handshake was refused: the reply code, or None when the server only hung up, which it may before `open`."""
    value = peer.read()
    return None if value is None else int(value.method.reply_code)


def test_server_says_what_it_is_and_can_do(fresh: RawConnection) -> None:
    start = fresh.start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"product", "version", "platform", "capabilities", "cluster_name"} <= start.server_properties.keys()
    assert {name for name, able in start.server_properties["capabilities"].items() if able is True} >= CAPABILITIES
    assert {b"PLAIN", b"AMQPLAIN"} <= set(start.mechanisms.split())
    assert b"en_US" in start.locales.split()


def test_tune_proposes_limits(fresh: RawConnection) -> None:
    fresh.start()
    fresh.login()
    tune = fresh.expect(spec.Connection.Tune)
    assert tune.frame_max >= 4096
    assert tune.channel_max >= 100
    assert tune.heartbeat > 0


def test_client_may_lower_the_limits(connect: Connect) -> None:
    connection = connect(channel_max=7, frame_max=8192, heartbeat=30)
    assert connection._impl.params.channel_max == 7
    assert connection._impl.params.frame_max == 8192
    assert connection._impl.params.heartbeat == 30
    assert len([connection.channel() for _ in range(7)]) == 7


def test_client_may_not_raise_frame_max(fresh: RawConnection) -> None:
    fresh.start()
    fresh.login()
    tune = fresh.expect(spec.Connection.Tune)
    fresh.call(0, spec.Connection.TuneOk(channel_max=1, frame_max=tune.frame_max * 2, heartbeat=0))
    assert refusal(fresh) in (None, 530)


def test_more_channels_than_negotiated_is_an_error(fresh: RawConnection) -> None:
    fresh.open(channel_max=2)
    fresh.open_channel(1)
    fresh.open_channel(2)
    fresh.call(3, spec.Channel.Open())
    assert fresh.closed_connection().reply_code in (504, 530)


def test_wrong_password_is_told_to_clients_that_listen(fresh: RawConnection) -> None:
    fresh.start()
    fresh.login(password="wrong")
    close = fresh.expect(spec.Connection.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (403, 0, 0)
    assert close.reply_text.startswith("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN")


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest"), ("", "")])
def test_wrong_credentials_are_refused(connect: Connect, user: str, password: str) -> None:
    with pytest.raises(ProbableAuthenticationError) as caught:
        connect(user=user, password=password)
    assert "403" in str(caught.value)


def test_unknown_mechanism_is_refused(fresh: RawConnection) -> None:
    fresh.start()
    properties = {"capabilities": {"authentication_failure_close": True}}
    fresh.call(
        0, spec.Connection.StartOk(client_properties=properties, mechanism="MAGIC", response="x", locale="en_US")
    )
    assert refusal(fresh) in (None, 403, 504)


def test_unknown_virtual_host_is_refused(fresh: RawConnection, connect: Connect) -> None:
    fresh.start()
    fresh.login()
    fresh.expect(spec.Connection.Tune)
    fresh.call(0, spec.Connection.TuneOk(channel_max=10, frame_max=131072, heartbeat=0))
    fresh.call(0, spec.Connection.Open(virtual_host="nowhere"))
    close = fresh.expect(spec.Connection.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (530, 10, 40)
    assert close.reply_text == "NOT_ALLOWED - vhost nowhere not found"
    with pytest.raises(ProbableAccessDeniedError):
        connect(virtual_host="nowhere")


def test_heartbeats_are_sent_and_silence_is_noticed(fresh: RawConnection) -> None:
    fresh.open(heartbeat_s=1)
    assert isinstance(fresh.read(), frame.Heartbeat)
    silent_since = time.monotonic()
    while fresh.read() is not None:
        pass
    assert time.monotonic() - silent_since < 15  # two missed intervals, and room for a slow machine


def test_heartbeats_keep_a_quiet_connection(connect: Connect) -> None:
    # A machine that is busy elsewhere for two seconds ends a good connection too: if heartbeats did not keep it, none
    # of these would live.
    for _ in range(10):
        connection = connect(heartbeat=1)
        channel = connection.channel()
        try:
            connection.sleep(3.5)
            assert channel.queue_declare("", exclusive=True).method.queue
        except pika.exceptions.AMQPError:
            continue
        return
    pytest.fail("no connection was kept")


def test_secret_can_be_renewed(connection: pika.BlockingConnection) -> None:
    connection.update_secret("another secret", "rotation")
    assert connection.channel().is_open


def test_a_closed_connection_answers_and_ends(fresh: RawConnection) -> None:
    fresh.open()
    fresh.call(0, spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0))
    fresh.expect(spec.Connection.CloseOk, 0)
    fresh.socket.shutdown(socket.SHUT_WR)
    assert fresh.read() is None


def test_connections_without_goodbye_free_what_they_held(connect: Connect, fresh: RawConnection, name: Any) -> None:
    queue = name()
    fresh.open().open_channel(1)
    fresh.call(1, spec.Queue.Declare(queue=queue, exclusive=True))
    fresh.expect(spec.Queue.DeclareOk)
    watcher = connect()
    with channel_error(405, "cannot obtain exclusive access to locked queue"):
        watcher.channel().queue_declare(queue, passive=True)
    fresh.socket.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            watcher.channel().queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code == 404:
                return
            assert error.reply_code == 405
            assert time.monotonic() < deadline
        watcher.process_data_events(time_limit=0.02)


def test_many_channels_on_one_connection(connection: pika.BlockingConnection, name: Any) -> None:
    channels = [connection.channel() for _ in range(200)]
    queue = channels[0].queue_declare(name(), exclusive=True).method.queue
    for number, channel in enumerate(channels):
        channel.basic_publish("", queue, str(number).encode())
        channel.flow(True)  # a round trip: this message is in before the next channel sends
    bodies = [channels[-1].basic_get(queue, auto_ack=True)[2] for _ in channels]
    assert bodies == [str(number).encode() for number in range(200)]


def test_a_channel_number_can_be_used_again(connection: pika.BlockingConnection) -> None:
    for _ in range(20):
        channel = connection.channel(5)
        assert channel.queue_declare("", exclusive=True).method.queue
        channel.close()
        assert channel.is_closed


def test_one_failed_channel_leaves_the_others(connection: pika.BlockingConnection, name: Any) -> None:
    healthy, failing = connection.channel(), connection.channel()
    queue = healthy.queue_declare(name(), exclusive=True).method.queue
    healthy.basic_publish("", queue, b"before")
    with channel_error(404, "no queue"):
        failing.basic_get(name("missing"))
    assert connection.is_open
    assert healthy.basic_get(queue)[2] == b"before"


def test_closing_a_channel_returns_what_it_had_not_acknowledged(connection: pika.BlockingConnection, name: Any) -> None:
    first, second = connection.channel(), connection.channel()
    queue = first.queue_declare(name(), exclusive=True).method.queue
    first.basic_publish("", queue, b"held")
    method, _, _ = first.basic_get(queue)
    assert method.redelivered is False
    first.close()
    method, _, body = second.basic_get(queue)
    assert body == b"held"
    assert method.redelivered is True
