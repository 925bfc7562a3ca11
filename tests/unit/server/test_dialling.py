"""Dials of a real node: TLS that is checked, hanging up before and after, and what controllers are told."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

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


def add(node: weft.Node, notes: Notes) -> None:
    node._running.driver.add_controller(notes)


def do(node: weft.Node, *actions: Action) -> None:
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
