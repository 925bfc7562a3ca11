"""What an instance of a service has begun and answered lately: no request is served twice, no reply is lost for good.

Owns the table of requests by their ids, with the replies that are still kept. Requests as they come, replies as they
are given and a client's questions come in; what to do with a request, and what to tell the client, go out.
It must never wait or send, and never judge by an id that may be shared: only the ids of weft's clients are known here,
which no two requests have.
Rule: whoever asks for good about a request that is not known here is told so, and it is not served afterwards: the
client may ask it anew elsewhere (docs/decisions/0031).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from weft.client.message import Message

REQUEST = "weft:"
"""Begins the correlation of every request of weft's clients; what follows is random, and counted."""
ANSWERED_MAX = 65_536
"""Requests that are remembered after they were answered: some seconds of a busy instance, in a dozen megabytes."""
REPLY_BYTES_MAX = 16 << 20
"""Replies that are kept to be given again, all of them together."""
VOID_MAX = 65_536
"""Requests that are not to be served any more, since they were asked anew."""
ASKED_MAX = 1_000
"""Requests one question may be about."""


class Standing(Enum):
    """What is known of a request that came in."""

    NEW = 1
    BEGUN = 2
    ANSWERED = 3
    VOID = 4


class Answer(NamedTuple):
    """A reply as it was given."""

    data: bytes
    content_type: str | None
    error: str | None = None
    """The name of the exception, if it is one."""


class Found(NamedTuple):
    """What an instance knows of the requests it was asked about."""

    begun: list[str]
    gone: list[str]
    """Answered, and the reply is not kept any more."""
    replies: list[tuple[str, Answer]]


def request_key(message: Message) -> str | None:
    """The id that a request of weft's clients has; None for those of others, whose ids may be shared."""
    correlation = message.correlation_id
    return correlation if isinstance(correlation, str) and correlation.startswith(REQUEST) else None


class Answers:
    """The requests of one instance. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[str, list[Message]] = {}
        # Plain tuples of plain values: the collector need not look at them, and there are many.
        self._answered: dict[str, tuple[bytes, str | None, str | None] | None] = {}
        self._order: deque[str] = deque()
        """Those that are answered, the oldest first."""
        self._kept: deque[str] = deque()
        """Those of them whose reply is kept."""
        self._bytes = 0
        self._void: dict[str, None] = {}
        self._void_order: deque[str] = deque()

    def begin(self, key: str, message: Message) -> Standing:
        """A request came in. One that is being served is settled with that, however often it comes."""
        with self._lock:
            begun = self._begun.get(key)
            if begun is not None:
                begun.append(message)
                return Standing.BEGUN
            if key in self._answered:
                return Standing.ANSWERED
            if key in self._void:
                return Standing.VOID
            self._begun[key] = [message]
            return Standing.NEW

    def end(self, key: str, answer: Answer | None) -> list[Message]:
        """The handler is through, without an answer if nobody waits for one any more; the messages to settle."""
        with self._lock:
            messages = self._begun.pop(key, [])
            if answer is not None:
                self._drop(key)
                self._answered[key] = (answer.data, answer.content_type, answer.error)
                self._order.append(key)
                self._kept.append(key)
                self._bytes += len(answer.data)
                self._shrink()
            return messages

    def _shrink(self) -> None:
        while len(self._order) > ANSWERED_MAX:
            self._drop(self._order.popleft())
        while len(self._kept) > ANSWERED_MAX or self._bytes > REPLY_BYTES_MAX:
            key = self._kept.popleft()
            answer = self._answered.get(key)
            if answer is not None:
                self._bytes -= len(answer[0])
                self._answered[key] = None

    def _drop(self, key: str) -> None:
        answer = self._answered.pop(key, None)
        if answer is not None:
            self._bytes -= len(answer[0])

    def forget(self, key: str) -> None:
        """The reply could not be given: whoever gets the request next serves it."""
        with self._lock:
            self._drop(key)

    def reply(self, key: str) -> Answer | None:
        """The reply to a request, if it is kept."""
        with self._lock:
            answer = self._answered.get(key)
            return None if answer is None else Answer(*answer)

    def ask(self, keys: Sequence[str], *, is_final: bool) -> Found:
        """What is known of some requests; those that are not are never served here after a final question."""
        found = Found([], [], [])
        with self._lock:
            for key in keys:
                if key in self._begun:
                    found.begun.append(key)
                elif key not in self._answered:
                    if is_final and key not in self._void:
                        self._void[key] = None
                        self._void_order.append(key)
                elif (answer := self._answered[key]) is None:
                    found.gone.append(key)
                else:
                    found.replies.append((key, Answer(*answer)))
            while len(self._void_order) > VOID_MAX:
                del self._void[self._void_order.popleft()]
        return found
