"""Dials of a real node: TLS that is checked, hanging up before and after, and what controllers are told."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from proton import Collector, Connection, Delivery, Message, Transport
from proton import Event as Event10

import weft
from weft.config.load import parse
from weft.model.actions import Action, Dial, Hangup, Trust
from weft.model.changes import Change, OpenLink
from weft.model.events import ConnectionClosed, DialFailed, Event, LinkAttached, PeerOpened

WAIT_S = 30.0


class Notes:
    """A controller that writes down what it is told and may answer each event once."""

    def __init__(self, answers: dict[type[Event], Sequence[Change | Action]] | None = None) -> None:
        self._answers = answers or {}
        self._told = asyncio.Event()
        self.events: list[Event] = []

    wants = frozenset(get_args(Event))

    def on_events(self, events: Sequence[Event], now_ns: int) -> Sequence[Change | Action]:
        self.events += events
        self._told.set()
        return [answer for event in events for answer in self._answers.pop(type(event), ())]

    async def until(self, kind: type[Event]) -> Event:
        async with asyncio.timeout(WAIT_S):
            while True:
                found = [event for event in self.events if isinstance(event, kind)]
                if found:
                    return found[0]
                self._told.clear()
                await self._told.wait()


class Listening:
    """A client that is dialled, made of Proton's engine: it takes whatever link and message comes."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def __aenter__(self) -> Listening:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, transport, events = Connection(), Transport(Transport.SERVER), Collector()
        connection.collect(events)
        transport.sasl().allowed_mechs("ANONYMOUS")
        transport.bind(connection)
        while True:
            while event := events.peek():
                self._on(event)
                events.pop()
            if (pending := transport.pending()) > 0:
                writer.write(transport.peek(pending))
                transport.pop(pending)
            elif data := await reader.read(65_536):
                transport.push(data)
            else:
                break
        writer.close()

    def _on(self, event: Any) -> None:
        match event.type:
            case Event10.CONNECTION_REMOTE_OPEN:
                event.connection.open()
            case Event10.SESSION_REMOTE_OPEN:
                event.session.open()
            case Event10.LINK_REMOTE_OPEN:
                event.link.target.address = event.link.remote_target.address
                event.link.open()
                event.link.flow(10)
            case Event10.DELIVERY if event.delivery.readable and not event.delivery.partial:
                message = Message()
                message.decode(event.link.recv(event.delivery.pending))
                event.delivery.update(Delivery.ACCEPTED)
                event.delivery.settle()
                self.got.put_nowait((event.link.target.address, bytes(message.body)))
            case Event10.CONNECTION_REMOTE_CLOSE:
                event.connection.close()

    async def next(self) -> tuple[str, bytes]:
        return await asyncio.wait_for(self.got.get(), 30)


def add(node: weft.Node, notes: Notes) -> None:
    node._running.driver.add_controller(notes)


def do(node: weft.Node, *actions: Action | Change) -> None:
    node._running.driver.apply(actions)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


async def test_tls_is_checked_and_then_messages_cross(certificate: Path) -> None:
    listen = '[[listen]]\naddress = "127.0.0.1:0"\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n'
    async with (
        weft.Node(name="far", configuration=parse(listen, folder=certificate)) as far,
        weft.Node(name="near") as near,
    ):
        far.declare_queue("q")
        await far.send("q", "over TLS")
        near.declare_queue("here")
        notes = Notes()
        add(near, notes)
        do(near, Dial(1, "127.0.0.1", far.ports[0], trust=Trust()))
        failed = await notes.until(DialFailed)
        assert isinstance(failed, DialFailed)
        assert "certificate" in failed.text
        do(near, Dial(2, "127.0.0.1", far.ports[0], trust=Trust(ca_file=certificate / "cert.pem")))
        opened = await notes.until(PeerOpened)
        assert isinstance(opened, PeerOpened)
        assert opened.node == "far"
        link = OpenLink(opened.conn, 1, "pull", "pull", "q", queue="here", relay=True)
        near._running.driver.apply([link])
        async with near.receive("here") as receiver, asyncio.timeout(WAIT_S):
            message = await anext(receiver)
            message.accept()
        assert (message.body, message.properties["headers"]["x-weft-trace"]) == (b"over TLS", ["far"])
        row = near._running.engine.inspect("links")[0]
        assert (row["relay"], row["messages"], row["attached"]) == ("far", 1, True)


async def test_a_wrong_file_is_a_failed_dial() -> None:
    async with weft.Node(name="near") as near:
        notes = Notes()
        add(near, notes)
        do(near, Dial(1, "127.0.0.1", 1, trust=Trust(ca_file=Path("/nowhere/ca.pem"))))
        failed = await notes.until(DialFailed)
        assert isinstance(failed, DialFailed)
        assert "/nowhere/ca.pem" in failed.text


async def test_a_dial_is_given_up_before_it_is_made_and_after() -> None:
    async with weft.Node(name="far", listen="127.0.0.1:0") as far, weft.Node(name="near") as near:
        notes = Notes()
        add(near, notes)
        dial = Dial(1, "127.0.0.1", far.ports[0], delay_ms=60_000)
        do(near, dial, Hangup(1))
        do(near, Dial(2, "127.0.0.1", far.ports[0]))
        opened = await notes.until(PeerOpened)
        assert isinstance(opened, PeerOpened)
        assert not [event for event in notes.events if isinstance(event, DialFailed)]
        do(near, Hangup(2))
        closed = await notes.until(ConnectionClosed)
        assert isinstance(closed, ConnectionClosed)
        assert closed.conn == opened.conn


async def test_a_controller_answers_with_a_link() -> None:
    async with weft.Node(name="far", listen="127.0.0.1:0") as far, weft.Node(name="near") as near:
        far.declare_queue("q")
        near.declare_queue("here")
        # The connection of a first dial has the first number there is; a link for another is reported as ended.
        notes = Notes()
        add(near, notes)
        do(near, Dial(1, "127.0.0.1", far.ports[0]))
        opened = await notes.until(PeerOpened)
        assert isinstance(opened, PeerOpened)
        answering = Notes({PeerOpened: [OpenLink(opened.conn, 7, "late", "pull", "q", queue="here")]})
        add(near, answering)
        do(near, Dial(2, "127.0.0.1", far.ports[0]))
        attached = await answering.until(LinkAttached)
        assert attached == LinkAttached(opened.conn, 7, "q", "")


async def test_peers_of_every_kind_dial_peers_of_every_kind() -> None:
    """Client to node, node to node, node to client (whose links the node makes), client to client."""
    async with (
        Listening() as client,
        weft.Node(name="far", listen="127.0.0.1:0") as far,
        weft.Node(name="near") as near,
    ):
        near.declare_queue("here")
        notes = Notes()
        add(near, notes)
        async with weft.connect(f"amqp://127.0.0.1:{far.ports[0]}") as fabric:
            await fabric.send("q", b"from a client to a node")
        do(near, Dial(1, "127.0.0.1", far.ports[0]))
        opened = await notes.until(PeerOpened)
        assert isinstance(opened, PeerOpened)
        do(near, OpenLink(opened.conn, 1, "node", "pull", "q", queue="here"))
        notes.events.clear()
        do(near, Dial(2, "127.0.0.1", client.port))
        opened = await notes.until(PeerOpened)
        assert isinstance(opened, PeerOpened)
        do(near, OpenLink(opened.conn, 2, "client", "push", "inbox", queue="here"))
        assert await client.next() == ("inbox", b"from a client to a node")
        async with weft.connect(f"amqp://127.0.0.1:{client.port}") as fabric:
            await fabric.send("desk", b"from a client to a client")
            assert await client.next() == ("desk", b"from a client to a client")
