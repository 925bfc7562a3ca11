"""What a client asks when it comes back: what became of the requests that it had no reply to.

Owns the questions to the instances of services and their answers, on both sides: `Question` is what an instance hears,
`Again` is the client's round of them after each reconnect. Outstanding requests come in; questions, and at last the
requests themselves once more, go out.
It must never have a request served twice: it is asked anew, under another id, only after instances were heard that do
not know it and have promised never to take it. Whoever cannot be heard is not asked anew.
Rule: a lost reply costs a question, a lost request a second one; nothing else is sent again (docs/decisions/0031).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft._kernel import Delivery
from weft.client.answers import ASKED_MAX, Found
from weft.client.codecs import encode
from weft.client.links import Outlet
from weft.client.message import Message
from weft.model.errors import WeftError
from weft.model.services import presence_topic

if TYPE_CHECKING:
    from weft.client.replies import Asked, Replies

WORD_HEADER = "weft-again"
"""The header of an instance's answer to a question: the topic it was asked under."""
FIRST_S = 0.2
"""How long a client that is back waits for what its node has kept for it, before it asks."""
ROUND_S_MAX = 2.0
"""The longest time between two rounds of questions."""
LOOK_S = 1.0
"""How long instances have to speak up after the first of them was heard; and again before a request is asked anew."""
NOTE_TTL_MS = 10_000


class Question(NamedTuple):
    """What an instance is asked."""

    topic: str
    to: str
    ids: list[str]
    is_final: bool

    def answer(self, found: Found) -> tuple[dict[str, list[str]], Mapping[str, str]]:
        """The body and the headers of the answer; replies go on their own."""
        return {"begun": found.begun, "gone": found.gone}, {WORD_HEADER: self.topic}


def read_question(message: Message) -> Question | None:
    """The question in a message; None if it is none."""
    try:
        note, topic = _note(message.data), message.subject
    except ValueError:  # a message that is none
        return None
    to = note.get("to")
    if not isinstance(to, str) or topic is None:
        return None
    return Question(topic, to, _ids(note, "ids"), note.get("final") is True)


def _note(data: Any) -> dict[str, Any]:
    """What was said, by whomever: it may be anything."""
    try:
        note = json.loads(data)
    except (TypeError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _ids(note: dict[str, Any], key: str) -> list[str]:
    ids = note.get(key)
    return [each for each in ids[:ASKED_MAX] if isinstance(each, str)] if isinstance(ids, list) else []


class Again:
    """The questions of one client, asked on the connection's loop; answers come on any thread."""

    def __init__(self, replies: Replies, outlet: Callable[..., Outlet]) -> None:
        """`outlet` gives the link to an address or a topic."""
        self._replies = replies
        self._outlet = outlet
        self._pause_s = FIRST_S
        self._next_at = float("inf")
        self._heard: dict[str, float] = {}
        """When an instance was heard first since the client is back, by topic; inf before that."""
        self._final: dict[str, float] = {}
        """When the first final question was asked, by topic."""

    def start(self, now: float) -> None:
        """The client is back."""
        self._pause_s, self._next_at = FIRST_S, now + FIRST_S
        self._heard.clear()
        self._final.clear()
        for _, asked in self._replies.outstanding():
            asked.is_begun = False

    def go_on(self, now: float) -> None:
        """There is one more to ask about."""
        if self._next_at == float("inf"):
            self.start(now)

    def stop(self) -> None:
        """The connection is gone: nobody can be asked."""
        self._next_at = float("inf")

    def tick(self, now: float) -> None:
        """Ask whoever is to be asked now."""
        if self._next_at == float("inf"):
            return
        by_topic: dict[str, list[tuple[str, Asked]]] = {}
        for key, asked in self._replies.outstanding():
            by_topic.setdefault(asked.topic, []).append((key, asked))
        if not by_topic:
            self.stop()
            return
        is_round = now >= self._next_at
        if is_round:
            self._pause_s = min(self._pause_s * 2, ROUND_S_MAX)
            self._next_at = now + self._pause_s
        with contextlib.suppress(WeftError):  # the connection has just ended: the next one begins anew
            for topic, outstanding in by_topic.items():
                self._see_to(topic, outstanding, now, is_round=is_round)

    def _see_to(self, topic: str, outstanding: Sequence[tuple[str, Asked]], now: float, *, is_round: bool) -> None:
        unknown = {key: asked for key, asked in outstanding if asked.is_unknown}
        if now >= self._final.get(topic, now) + LOOK_S:
            for asked in unknown.values():
                self._replies.ask_anew(asked)
            unknown.clear()
        if not is_round:
            return
        self._put(topic, [key for key, asked in outstanding if not asked.is_unknown], is_final=False)
        is_final = now >= self._heard.setdefault(topic, float("inf")) + LOOK_S
        if self._put(topic, list(unknown), is_final=is_final) and is_final:
            self._final.setdefault(topic, now)

    def _put(self, topic: str, keys: Sequence[str], *, is_final: bool) -> bool:
        """Ask about some requests; False if the link is full."""
        for start in range(0, len(keys), ASKED_MAX):
            ids = list(keys[start : start + ASKED_MAX])
            data, content_type = encode({"to": self._replies.address, "ids": ids, "final": is_final})
            properties: dict[str, Any] = {"content_type": content_type, "ttl_ms": NOTE_TTL_MS}
            outlet = self._outlet(topic, properties, is_topic=True)
            if outlet.is_full:
                return False
            outlet.send((data,), properties, _Unheeded())
        return True

    def on_word(self, delivery: Delivery, topic: str, now: float) -> tuple[list[str], list[str]]:
        """An instance has answered: the requests it has begun, and those whose reply it does not keep any more."""
        try:
            note = _note(delivery.body)
        except ValueError:  # a message that is none
            return [], []
        if self._heard.get(topic) == float("inf"):
            self._heard[topic] = now
        return _ids(note, "begun"), _ids(note, "gone")


class _Unheeded:
    """The ticket of a question: if nobody hears it, the next one may be heard."""

    deadline = float("inf")
    left = 1

    def done(self, value: Any = None) -> None:
        """The node has it."""

    def fail(self, error: BaseException) -> None:
        """Nobody has it."""


def question_topic(address: str) -> str:
    """The topic under which the instances of a service are asked."""
    return presence_topic(address, "ask")
