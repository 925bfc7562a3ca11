"""STOMP 1.2 as a side of a gateway, over stomp.py (`weft[stomp]`): ActiveMQ, Artemis, RabbitMQ and others speak it.

Owns one connection each, whose library has a thread of its own: what that hears is handed to the loop. A destination's
messages come out as letters, acknowledged one by one; letters go in with a receipt each.
It must never wait for the network on the loop's thread.
Rule: the STOMP 1.2 specification. Ids: `amqp-message-id` (RabbitMQ's name for a message's own id), else
`weft-message-id` (what a target here wrote), else the broker's `message-id`, which is unique there alone, so it is told
with the broker's place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

import stomp

from weft.gateway.letters import Letter, Refusals
from weft.model.errors import Unavailable

PREFETCH = 200
"""Messages that a broker may send before the first is acknowledged: two batches. Each broker has its own header."""
PREFETCH_HEADERS = {"prefetch-count": PREFETCH, "activemq.prefetchSize": PREFETCH, "consumer-window-size": 1_048_576}
HEARTBEAT_MS = 10_000
ANSWER_S = 30.0
OWN_ID = "weft-message-id"
"""For brokers that keep headers and know no ids but their own. A plain `id` is some program's, for its own purposes."""
ID_HEADERS = ("amqp-message-id", OWN_ID)
OWN_HEADERS = frozenset(
    {"ack", "content-length", "content-type", "destination", "message-id", "redelivered", "subscription", *ID_HEADERS}
)
"""What STOMP says of a delivery, and not the message of itself."""
SAID_HEADERS = OWN_HEADERS | {"transaction", "receipt", "persistent"}
"""What a SEND says to the broker: never a letter's own word."""


class Link(stomp.ConnectionListener):  # type: ignore[misc]
    """One connection, as the loop sees it."""

    def __init__(self, host: str, port: int, user: str, password: str, vhost: str) -> None:
        self._place = [(host, port)]
        self._entry = {"username": user, "passcode": password}
        self._loop = asyncio.get_running_loop()
        self._error: Exception | None = None
        self.said = ""
        """Why the broker ended it, in its own words."""
        self._receipts: dict[str, asyncio.Future[None]] = {}
        self._numbers = 0
        self.letters: asyncio.Queue[Letter | None] = asyncio.Queue()
        """Bounded by PREFETCH; None when the connection is gone."""
        beats = (HEARTBEAT_MS, HEARTBEAT_MS)
        self.connection = stomp.Connection12(
            self._place, heartbeats=beats, reconnect_attempts_max=1, auto_decode=False, vhost=vhost
        )
        self.connection.set_listener("weft", self)

    async def open(self) -> None:
        """Connect, or raise Unavailable."""
        await self.call(self.connection.connect, wait=True, **self._entry)

    async def close(self) -> None:
        """Let go; what is not acknowledged is the broker's again."""
        self.connection.remove_listener("weft")
        try:
            await self.call(self.connection.disconnect)
        except Unavailable:
            return  # it is gone already

    async def call(self, do: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Have the library do something that may wait for the network."""
        try:
            return await asyncio.to_thread(do, *args, **options)
        except (stomp.exception.StompException, OSError) as error:
            why = self.said or str(error) or type(error).__name__
            raise Unavailable(f"STOMP at {self._place[0][0]}:{self._place[0][1]}: {why}") from None

    def receipt(self) -> tuple[str, asyncio.Future[None]]:
        """A name for the broker to answer by, and its answer to come."""
        self._numbers += 1
        name, answer = f"weft-{self._numbers}", self._loop.create_future()
        self._receipts[name] = answer
        if self._error is not None:
            self._lose(self._error)
        return name, answer

    # on the library's thread

    def on_message(self, frame: Any) -> None:
        headers = dict(frame.headers)
        id_ = next((headers[name] for name in ID_HEADERS if headers.get(name)), None) or self._own_id(headers)
        body = frame.body if isinstance(frame.body, bytes) else str(frame.body or "").encode()
        own = {name: value for name, value in headers.items() if name not in OWN_HEADERS}
        letter = Letter(id_, body, headers.get("content-type"), own, headers.get("ack") or headers.get("message-id"))
        self._loop.call_soon_threadsafe(self.letters.put_nowait, letter)

    def _own_id(self, headers: dict[str, str]) -> str:
        """RabbitMQ makes one for each delivery; ActiveMQ and Artemis keep it, each counting for itself."""
        host, port = self._place[0]
        return f"stomp://{host}:{port}{headers.get('destination', '')}#{headers.get('message-id', '')}"

    def on_receipt(self, frame: Any) -> None:
        self._loop.call_soon_threadsafe(self._answer, frame.headers.get("receipt-id"))

    def on_error(self, frame: Any) -> None:
        body = frame.body.decode(errors="replace") if isinstance(frame.body, bytes) else str(frame.body or "")
        self.said = f"{frame.headers.get('message', 'error')}: {body[:200]}"
        self._loop.call_soon_threadsafe(self._lose, Unavailable(f"STOMP: {self.said}"))

    def on_disconnected(self) -> None:
        self._loop.call_soon_threadsafe(self._lose, Unavailable("STOMP: the connection is gone"))

    # on the loop's

    def _answer(self, name: str) -> None:
        answer = self._receipts.pop(name, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _lose(self, error: Exception) -> None:
        self._error = error
        self.letters.put_nowait(None)
        for answer in self._receipts.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # nobody waits for it if the call before has failed as well
        self._receipts.clear()

    async def next(self) -> Letter:
        """The next letter."""
        letter = await self.letters.get()
        if letter is None:
            self.letters.put_nowait(None)
            raise self._error or Unavailable("STOMP: the connection is gone")
        return letter


class StompSource:
    """Messages of a destination, such as /queue/orders."""

    def __init__(self, destination: str, *place: Any) -> None:
        """`place`: host, port, user, password, virtual host."""
        self._destination = destination
        self._place = place
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        link = self._link = Link(*self._place)
        await link.open()
        options = {"ack": "client-individual", "headers": PREFETCH_HEADERS}
        await link.call(link.connection.subscribe, self._destination, "weft", **options)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._link is not None:
            await self._link.close()

    @property
    def _open(self) -> Link:
        if self._link is None:
            raise Unavailable("a source is used inside `async with`")
        return self._link

    async def pull(self, count_max: int) -> Sequence[Letter]:
        """The next messages: what is there, and one at least."""
        link = self._open
        letters = [await link.next()]
        while len(letters) < count_max and not link.letters.empty():
            letters.append(await link.next())
        return letters

    async def done(self, letters: Sequence[Letter]) -> None:
        """Acknowledge them."""
        await self._open.call(self._tell_all, self._open.connection.ack, letters)

    async def refuse(self, letter: Letter, why: str) -> None:  # noqa: ARG002 - STOMP has no word for it
        """The broker puts it aside, if it has a place for such."""
        await self._open.call(self._tell_all, self._open.connection.nack, [letter])

    @staticmethod
    def _tell_all(tell: Callable[[str], None], letters: Sequence[Letter]) -> None:
        for letter in letters:
            tell(letter.token)


class StompTarget:
    """A destination that letters are sent to, kept by the broker over a restart."""

    def __init__(self, destination: str, *place: Any) -> None:
        self._destination = destination
        self._place = place
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        self._link = Link(*self._place)
        await self._link.open()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._link is not None:
            await self._link.close()

    async def push(self, letters: Sequence[Letter]) -> Refusals:
        """Send them, and wait for the receipt of each."""
        link = self._link
        if link is None:
            raise Unavailable("a target is used inside `async with`")
        said = [letter for letter in letters if _can_be_said(letter)]
        receipts = [link.receipt() for _ in said]
        await link.call(self._send_all, link, said, [name for name, _ in receipts])
        async with asyncio.timeout(ANSWER_S):
            await asyncio.gather(*(answer for _, answer in receipts))
        why = "it cannot be said in STOMP: there is a NUL in its head"
        return {letter.id: why for letter in letters if not _can_be_said(letter)}

    def _send_all(self, link: Link, letters: Sequence[Letter], receipts: Sequence[str]) -> None:
        for letter, receipt in zip(letters, receipts, strict=True):
            own = {_escaped(name): value for name, value in letter.headers.items() if name not in SAID_HEADERS}
            ids = {**dict.fromkeys(ID_HEADERS, letter.id), "persistent": "true", "receipt": receipt}
            link.connection.send(self._destination, letter.body, letter.content_type, {**own, **ids})


def _can_be_said(letter: Letter) -> bool:
    """A NUL ends a frame, and nothing escapes it."""
    texts = (letter.id, letter.content_type or "", *letter.headers, *letter.headers.values())
    return not any("\0" in text for text in texts)


def _escaped(name: str) -> str:
    """The name of a header; values the library escapes itself."""
    return name.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c").replace("\r", "\\r")
