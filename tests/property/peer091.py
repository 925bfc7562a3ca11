"""A small AMQP 0-9-1 client without a socket, on pamqp's codec.

Owns the bytes of one connection to a `Node` and what came back, by channel. A call sends one method; its answer, if the
protocol has one, is there when the call returns, because the node has no delays. Deliveries, returns and confirms
are kept in the order they came until a test takes them.
It must never settle or answer anything by itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from pamqp import commands, frame, header
from pamqp.body import ContentBody

from property.node import Node

HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES: dict[str, Any] = {"consumer_cancel_notify": True, "basic.nack": True, "publisher_confirms": True}
FRAME_BYTES_MAX = 131_072


@dataclass(frozen=True)
class Content:
    """A method with its message: a delivery, a return or the answer to get."""

    method: Any
    properties: commands.Basic.Properties
    body: bytes


class Refused(Exception):
    """The node closed the channel or the connection."""


class Peer091:
    """A connection, open after its making."""

    def __init__(self, node: Node, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.node = node
        self.conn = node.open()
        self.frame_bytes_max = frame_bytes_max
        self.inbox: defaultdict[int, list[Any]] = defaultdict(list)
        self._unread = bytearray()
        self._open_content: dict[int, tuple[Any, Any, bytearray]] = {}
        self._seen_channels = 0
        self.send_bytes(HEADER)
        self.expect(0, commands.Connection.Start)
        self.send(0, commands.Connection.StartOk({"capabilities": CAPABILITIES}, "ANONYMOUS", "", "en_US"))
        tune = self.expect(0, commands.Connection.Tune)
        self.send(0, commands.Connection.TuneOk(tune.channel_max, frame_bytes_max, 0))
        self.send(0, commands.Connection.Open("/"))
        self.expect(0, commands.Connection.OpenOk)

    def send_bytes(self, data: bytes) -> None:
        self.node.receive(self.conn, data)
        self.read()

    def send(self, channel: int, *frames: Any) -> None:
        self.send_bytes(b"".join(frame.marshal(one, channel) for one in frames))

    def call(self, channel: int, method: Any, answer: Any) -> Any:
        """Send a method and take its answer, wherever it stands among what came."""
        self.send(channel, method)
        return self.expect(channel, answer)

    def read(self) -> None:
        """Sort what the node has sent into the inboxes."""
        self._unread += self.node.output.pop(self.conn, b"")
        while self._unread:
            size, channel, value = frame.unmarshal(bytes(self._unread))
            if size == 0:
                return
            del self._unread[:size]
            self._file(channel, value)

    def _file(self, channel: int, value: Any) -> None:
        if isinstance(value, commands.Basic.Deliver | commands.Basic.Return | commands.Basic.GetOk):
            self._open_content[channel] = (value, None, bytearray())
            return
        if isinstance(value, header.ContentHeader | ContentBody):
            method, head, body = self._open_content[channel]
            if isinstance(value, header.ContentHeader):
                head = value
            else:
                body += value.value
            self._open_content[channel] = (method, head, body)
            if len(body) < head.body_size:
                return
            del self._open_content[channel]
            value = Content(method, head.properties, bytes(body))
        self.inbox[channel].append(value)

    def take(self, channel: int, kind: Any) -> list[Any]:
        """Take all of a kind out of a channel's inbox: methods, or contents by their method."""
        inbox = self.inbox[channel]
        found = [one for one in inbox if isinstance(_method(one), kind)]
        self.inbox[channel] = [one for one in inbox if not isinstance(_method(one), kind)]
        return found

    def expect(self, channel: int, kind: Any) -> Any:
        self.read()
        found = self.take(channel, kind)
        if len(found) != 1:
            for number in (channel, 0):
                for closing in self.take(number, commands.Channel.Close | commands.Connection.Close):
                    raise Refused(f"{closing.reply_code} {closing.reply_text}")
        assert len(found) == 1, (kind, found, self.inbox)
        return found[0]

    # the methods tests use most

    def open_channel(self, *, confirm: bool = False) -> int:
        self._seen_channels += 1
        channel = self._seen_channels
        self.call(channel, commands.Channel.Open(), commands.Channel.OpenOk)
        if confirm:
            self.call(channel, commands.Confirm.Select(), commands.Confirm.SelectOk)
        return channel

    def declare_exchange(self, channel: int, name: str, kind: str, arguments: dict[str, Any]) -> None:
        method = commands.Exchange.Declare(exchange=name, exchange_type=kind, arguments=arguments)
        self.call(channel, method, commands.Exchange.DeclareOk)

    def declare_queue(self, channel: int, name: str, arguments: dict[str, Any] | None = None, **flags: bool) -> Any:
        method = commands.Queue.Declare(queue=name, arguments=arguments or {}, **flags)
        return self.call(channel, method, commands.Queue.DeclareOk)

    def content(self, exchange: str, key: str, body: bytes, mandatory: bool = False, **properties: Any) -> list[Any]:
        """The frames of a publish."""
        method = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
        head = header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties(**properties))
        step = self.frame_bytes_max - 8
        return [method, head, *(ContentBody(body[at : at + step]) for at in range(0, len(body), step))]

    def publish(self, channel: int, exchange: str, key: str, body: bytes, **options: Any) -> None:
        self.send(channel, *self.content(exchange, key, body, **options))

    def get(self, channel: int, queue: str) -> Content | None:
        self.send(channel, commands.Basic.Get(queue=queue))
        kinds = commands.Basic.GetOk | commands.Basic.GetEmpty
        answer = self.expect(channel, kinds)
        return answer if isinstance(answer, Content) else None


def _method(one: Any) -> Any:
    return one.method if isinstance(one, Content) else one
