"""What exchanges, bindings and queues mean, as plainly as it can be said: the oracle of the machine.

Owns tables of the same things the node has, by name, and every copy of every message. Steps come in as calls; what a
client must then see comes out: who took a message, what is delivered from which queue in which order, what is left.
It knows no protocol and nothing of how the node does it. Where the rules leave something open (which of several
consumers gets a message) it says only what they fix; where even that is too much (`is_open`) the step is not taken.
Rules: AMQP 0-9-1 section 3.1.3 and RabbitMQ's queue arguments, dead lettering and its cycle detection.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from property.receipts import Answer, Barrier, Fate, Receipt, Window

Reason = Literal["rejected", "expired", "maxlen"]
Outcome = Literal["accepted", "rejected", "returned"]
Headers = Mapping[str, object]


@dataclass(frozen=True)
class Message:
    """A published message; its number is its body. `deaths` is newest first, one per queue and reason."""

    number: int
    key: str
    headers: tuple[tuple[str, object], ...] = ()
    priority: int = 0
    ttl_ms: int | None = None
    id: str | None = None
    deaths: tuple[tuple[str, Reason], ...] = ()


@dataclass
class Copy:
    """One message in one queue. It keeps its place: who returns goes where it was."""

    message: Message
    lane: int
    position: int
    expires_ns: int | None
    redelivered: bool = False
    receipt: Receipt | None = None
    """Its publisher is answered by its consumer."""

    def end(self, fate: Fate) -> None:
        """It has left its queue for good."""
        if self.receipt is not None:
            self.receipt.speak(fate)

    def __lt__(self, other: Copy) -> bool:
        return (-self.lane, self.position) < (-other.lane, other.position)


@dataclass(frozen=True)
class Settings:
    """Arguments of a queue."""

    length_max: int | None = None
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] = "drop-head"
    priority_max: int = 0
    ttl_ms: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    barrier: Window | None = None
    end_to_end: bool = False
    stream: bool = False
    """It is read and never taken from; nobody reads it here before the end."""

    def arguments(self) -> dict[str, object]:
        """As a client of 0-9-1 writes them."""
        table = {
            "x-max-length": self.length_max,
            "x-overflow": self.overflow if self.length_max is not None else None,
            "x-max-priority": self.priority_max or None,
            "x-message-ttl": self.ttl_ms,
            "x-dead-letter-exchange": self.dead_letter_exchange,
            "x-dead-letter-routing-key": self.dead_letter_key,
            "x-ack": "end-to-end" if self.end_to_end else None,
            "x-queue-type": "stream" if self.stream else None,
        }
        barrier = {} if self.barrier is None else self.barrier.arguments()
        return {name: value for name, value in table.items() if value is not None} | barrier


@dataclass
class Queue:
    """A queue: what waits in order, what is out, and what became of the rest."""

    name: str
    settings: Settings
    ready: list[Copy] = field(default_factory=list)
    unsettled: int = 0
    credit: dict[int, int] = field(default_factory=dict)
    """What each of its consumers may still take."""
    counts: Counter[str] = field(default_factory=Counter)
    position: int = 0
    barrier: Barrier | None = None

    @property
    def is_full(self) -> bool:
        return self.settings.length_max is not None and len(self.ready) >= self.settings.length_max

    @property
    def is_over(self) -> bool:
        """Must it drop its head? One that refuses may be too long as well, by what came back."""
        length_max = self.settings.length_max
        return self.settings.overflow == "drop-head" and length_max is not None and len(self.ready) > length_max

    def take(self) -> Copy:
        """The head goes out."""
        self.unsettled += 1
        self.counts["delivered"] += 1
        return self.ready.pop(0)


class Binding(NamedTuple):
    """A row of an exchange."""

    source: str
    kind: Literal["queue", "exchange"]
    destination: str
    key: str
    arguments: tuple[tuple[str, object], ...] = ()


class Held(NamedTuple):
    """A delivery that waits for its outcome; without a consumer if it was asked for by itself."""

    queue: Queue
    copy: Copy
    consumer: int | None


class Result(NamedTuple):
    """What became of a publish: queues it was routed to, those that refused it, exchanges that held it back."""

    routed: frozenset[str]
    refused: frozenset[str]
    held_back: frozenset[str] = frozenset()

    @property
    def is_taken(self) -> bool:
        return bool(self.routed or self.held_back)


@cache
def topic_pattern(pattern: str) -> re.Pattern[str]:
    """`*` is one word, `#` any number of them."""
    text = ""
    for word in _words(pattern):
        text += r"(?:\.[^.]*)*" if word == "#" else r"\." + (r"[^.]*" if word == "*" else re.escape(word))
    return re.compile(text)


def topic_matches(pattern: str, key: str) -> bool:
    return topic_pattern(pattern).fullmatch("".join("." + word for word in _words(key))) is not None


def _words(key: str) -> list[str]:
    """Between dots there may be nothing and it is a word; the empty key has none."""
    return key.split(".") if key else []


def headers_match(arguments: Headers, headers: Headers) -> bool:
    """Arguments that start with `x-` are not compared; an argument without value asks only for presence."""
    hits = [
        name in headers and (value is None or headers[name] == value)
        for name, value in arguments.items()
        if not name.startswith("x-")
    ]
    return any(hits) if arguments.get("x-match") == "any" else all(hits)


class Model:
    """One virtual host."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.exchanges: dict[str, str] = {}
        self.barriers: dict[str, Barrier] = {}
        """Of exchanges."""
        self.queues: dict[str, Queue] = {}
        self.bindings: set[Binding] = set()
        self.totals: Counter[str] = Counter()
        self.out: dict[str, list[Copy]] = {}
        """Copies on their way to consumers since `sent` was last called, by queue, in order."""
        self.held: dict[int, Held] = {}
        self.is_open = False
        """Dead letters met within one step: those of two queues, whose order is nobody's to say, or several where one
        may be refused before the other was handed on.
        """
        self.answers: dict[int, Answer] = {}
        """What publishers are told in this step, by the numbers of their messages."""
        self._receipt: Receipt | None = None
        """Of the message that is being published."""
        self._dying: deque[tuple[Queue, Message, Reason]] = deque()
        self._sources: dict[str, str] = {}

    # topology

    def declare_exchange(self, name: str, kind: str, window: Window | None = None) -> None:
        if name not in self.exchanges and window is not None:
            self.barriers[name] = Barrier(window)
        self.exchanges[name] = kind

    def delete_exchange(self, name: str) -> None:
        del self.exchanges[name]
        self.barriers.pop(name, None)
        self._unbind_all("exchange", name)
        self.bindings = {row for row in self.bindings if row.source != name}

    def declare_queue(self, name: str, settings: Settings) -> None:
        barrier = None if settings.barrier is None else Barrier(settings.barrier)
        self.queues.setdefault(name, Queue(name, settings, barrier=barrier))

    def delete_queue(self, name: str) -> int:
        """Drop a queue with what waits in it; how much that was."""
        self._unbind_all("queue", name)
        queue = self.queues.pop(name)
        out = [held.copy for held in self.held.values() if held.queue is queue]
        for copy in (*queue.ready, *out):
            copy.end("rejected")
        return len(queue.ready)

    def bind(self, binding: Binding) -> None:
        self.bindings.add(binding)

    def unbind(self, binding: Binding) -> None:
        self.bindings.discard(binding)

    def _unbind_all(self, kind: str, name: str) -> None:
        self.bindings = {row for row in self.bindings if (row.kind, row.destination) != (kind, name)}

    # messages

    def route(self, exchange: str, message: Message, past: Callable[[str], bool] = lambda _: True) -> frozenset[str]:
        """The queues a message reaches: each once, however many ways lead there, `past` the barriers of exchanges."""
        if exchange == "":
            return frozenset({message.key} & self.queues.keys())
        visited, waiting = set(), [exchange]
        found: set[str] = set()
        while waiting:
            source = waiting.pop()
            if source in visited or source not in self.exchanges:
                continue
            visited.add(source)
            if not past(source):
                continue
            for row in self.bindings:
                if row.source == source and self._matches(row, message):
                    (found.add if row.kind == "queue" else waiting.append)(row.destination)
        return frozenset(found)

    def _matches(self, row: Binding, message: Message) -> bool:
        match self.exchanges[row.source]:
            case "direct":
                return row.key == message.key
            case "topic":
                return topic_matches(row.key, message.key)
            case "headers":
                return headers_match(dict(row.arguments), dict(message.headers))
        return True

    def publish(self, exchange: str, message: Message) -> Result:
        self._begin()
        receipt = Receipt(message.number, self.answers)
        result = self._post(exchange, message, receipt)
        self._answer(receipt, result)
        self._settle_down(result.routed)
        return result

    def commit(self, posts: Iterable[tuple[str, Message]], ends: Iterable[tuple[int, Outcome, Fate | None]]) -> bool:
        """Messages are published and deliveries end, all before anything is delivered. No, and nothing happens, if a
        queue that refuses messages has no room for its share. Nobody waits for an answer of these messages.
        """
        self._begin()
        posts = list(posts)
        if not self._fits(posts):
            return False
        touched: set[str] = set()
        for exchange, message in posts:
            touched |= self._post(exchange, message, Receipt(message.number, {}, waits=False)).routed
        for token, outcome, word in ends:
            touched |= self._end(token, outcome, word=word)
        self._settle_down(touched)
        return True

    def _fits(self, posts: Iterable[tuple[str, Message]]) -> bool:
        """What a barrier will hold back counts as well, unless it is the barrier of an exchange that knows it now."""
        share: Counter[str] = Counter()
        for exchange, message in posts:
            share.update(self.route(exchange, message, lambda name: not self._is_known(name, message)))  # noqa: B023
        limited = ((self.queues[name], count) for name, count in share.items())
        return all(
            queue.settings.length_max is None
            or queue.settings.overflow == "drop-head"
            or len(queue.ready) + count <= queue.settings.length_max
            for queue, count in limited
        )

    def _is_known(self, exchange: str, message: Message) -> bool:
        barrier = self.barriers.get(exchange)
        return barrier is not None and message.id is not None and barrier.knows(message.id, self.now_ms)

    def _post(self, exchange: str, message: Message, receipt: Receipt) -> Result:
        """Route a message past the barriers into its queues."""
        self._receipt = receipt
        met: dict[str, bool] = {}
        """Exchanges with a barrier on the way: did it let the message pass?"""

        def past(name: str) -> bool:
            if name in self.barriers and message.id is not None:
                met[name] = not self._is_known(name, message)
            return met.get(name, True)

        routed = self.route(exchange, message, past)
        result = self._deliver(routed, message, frozenset(name for name, passed in met.items() if not passed))
        self._receipt = None
        passed = [self._barrier_of(name) for name in sorted(result.routed - result.refused)]
        for name, is_passed in met.items():
            if not is_passed:
                self._hold_back(self.barriers[name], receipt, message)
            elif result.routed and not result.refused:
                passed.append(self.barriers[name])
        for barrier in passed:
            if barrier is not None and message.id is not None and not barrier.knows(message.id, self.now_ms):
                barrier.remember(message.id, self.now_ms)
                receipt.known_to(barrier, message.id)
        return result

    def _barrier_of(self, name: str) -> Barrier | None:
        return self.queues[name].barrier

    def _answer(self, receipt: Receipt, result: Result) -> None:
        """What the publisher is told at once, if it need not wait."""
        receipt.waits = not result.refused
        if result.refused:
            self.answers[receipt.number] = "rejected"
        elif not receipt.left:
            self.answers[receipt.number] = "accepted" if result.is_taken else "unroutable"

    @property
    def now_ms(self) -> int:
        return self.now_ns // 1_000_000

    def _hold_back(self, barrier: Barrier, receipt: Receipt, message: Message) -> None:
        barrier.duplicates += 1
        self.totals["duplicate"] += 1
        receipt.join(barrier, message.id or "")

    def _deliver(self, targets: Iterable[str], message: Message, held_back: frozenset[str] = frozenset()) -> Result:
        routed = frozenset(targets)
        refused = frozenset(name for name in routed if not self._take(self.queues[name], message))
        result = Result(routed, refused, held_back)
        self.totals["published"] += 1
        self.totals["unroutable"] += not result.is_taken
        return result

    def _take(self, queue: Queue, message: Message) -> bool:
        """Offer a message to a queue behind its barrier, which looks at what is published and not at dead letters."""
        barrier, receipt = queue.barrier, self._receipt
        if barrier is None or message.id is None or receipt is None or not barrier.knows(message.id, self.now_ms):
            return self._offer(queue, message)
        self._hold_back(barrier, receipt, message)
        return True

    def _offer(self, queue: Queue, message: Message) -> bool:
        settings = queue.settings
        if settings.overflow != "drop-head" and queue.is_full:
            queue.counts["dropped"] += 1
            if settings.overflow == "reject-publish-dlx":
                self._dying.append((queue, message, "maxlen"))
            return False
        ttls = [ttl for ttl in (settings.ttl_ms, message.ttl_ms) if ttl is not None and not settings.stream]
        expires_ns = self.now_ns + min(ttls) * 1_000_000 if ttls else None
        lane = min(message.priority, settings.priority_max)
        receipt = self._receipt if settings.end_to_end else None
        if receipt is not None and not receipt.waits:
            receipt = None
        if receipt is not None:
            receipt.left += 1
        queue.ready.append(Copy(message, lane, queue.position, expires_ns, receipt=receipt))
        queue.ready.sort()
        queue.position += 1
        queue.counts["published"] += 1
        return True

    # turns

    def _begin(self) -> None:
        self.is_open = False
        self._sources.clear()

    def _settle_down(self, names: Iterable[str]) -> None:
        """Deliver, expire and drop in these queues, then in those where dead letters arrive, until all is quiet."""
        for name in sorted(names):
            self._pump(self.queues[name])
        while self._dying:
            self._bury(*self._dying.popleft())

    def _pump(self, queue: Queue) -> None:
        """Expire and deliver heads, then drop what is too much whatever its clock says, until all is quiet."""
        while True:
            while queue.ready and self._move_head(queue):
                pass
            if not queue.is_over:
                return
            while queue.is_over:
                self._died(queue, queue.ready.pop(0), "maxlen")

    def _move_head(self, queue: Queue) -> bool:
        expires_ns = queue.ready[0].expires_ns
        if expires_ns is not None and expires_ns < self.now_ns:
            self._died(queue, queue.ready.pop(0), "expired")
            return True
        if sum(queue.credit.values()) > len(self.out.get(queue.name, ())):
            self.out.setdefault(queue.name, []).append(queue.take())
            self.totals["delivered"] += 1
            return True
        return False

    def _died(self, queue: Queue, copy: Copy, reason: Reason) -> None:
        queue.counts["dropped" if reason == "maxlen" else reason] += 1
        copy.end("rejected")
        self._dying.append((queue, copy.message, reason))

    def _bury(self, queue: Queue, message: Message, reason: Reason) -> None:
        exchange = queue.settings.dead_letter_exchange
        if exchange is None:
            return
        queue.counts["dead_lettered"] += 1
        if exchange != "" and exchange not in self.exchanges:
            return
        death = (queue.name, reason)
        deaths = (death, *(old for old in message.deaths if old != death))
        key = message.key if queue.settings.dead_letter_key is None else queue.settings.dead_letter_key
        letter = Message(message.number, key, message.headers, message.priority, None, message.id, deaths)
        targets = {name for name in self.route(exchange, letter) if reason == "rejected" or not _is_cycle(name, deaths)}
        for name in targets:
            self.is_open |= name in self._sources and self._sources[name] != queue.name
            self._sources[name] = queue.name
        self.totals["dead_lettered"] += 1
        self._deliver(targets, letter)
        for name in sorted(targets):
            self._pump(self.queues[name])

    def advance(self, now_ns: int) -> None:
        """Time passes; each head dies at its own time, so that the dead letters it becomes live from then on."""
        self._begin()
        while (due_ns := self._next_due_ns()) is not None and due_ns <= now_ns:
            self.now_ns = due_ns
            self._sources.clear()
            self._settle_down(self.queues)
        self.now_ns = now_ns

    def _next_due_ns(self) -> int | None:
        heads = (queue.ready[0].expires_ns for queue in self.queues.values() if queue.ready)
        return min((expires_ns + 1 for expires_ns in heads if expires_ns is not None), default=None)

    # consumers

    def consume(self, name: str, consumer: int, credit: int) -> None:
        """A consumer comes, or gets more credit."""
        self._begin()
        queue = self.queues[name]
        queue.credit[consumer] = queue.credit.get(consumer, 0) + credit
        self._settle_down([name])

    def sent(self, name: str) -> list[Copy]:
        """What went to consumers of a queue since it was last asked."""
        return self.out.pop(name, [])

    def got(self, token: int, name: str, copy: Copy, consumer: int) -> None:
        """A consumer was seen to have one of them; from now on `token` names the delivery."""
        queue = self.queues[name]
        queue.credit[consumer] -= 1
        self.held[token] = Held(queue, copy, consumer)

    def get(self, name: str, token: int) -> Copy | None:
        """The head, for a client that asks for one message."""
        self._begin()
        self._settle_down([name])
        queue = self.queues[name]
        if not queue.ready:
            return None
        self.totals["delivered"] += 1
        self.held[token] = Held(queue, queue.take(), None)
        self._settle_down([name])
        return self.held[token].copy

    def settle(
        self, tokens: Iterable[int], outcome: Outcome, *, gives_credit: bool = False, word: Fate | None = None
    ) -> None:
        """Deliveries end, in this order. A queue that is gone took its messages with it. What is given back with a
        `word` goes to the publisher that waits for it.
        """
        self._begin()
        touched: set[str] = set()
        for token in tokens:
            touched |= self._end(token, outcome, gives_credit=gives_credit, word=word)
        self._settle_down(touched)

    def _end(
        self, token: int, outcome: Outcome, *, gives_credit: bool = False, word: Fate | None = None
    ) -> frozenset[str]:
        """One delivery ends; the queue where that matters."""
        queue, copy, consumer = self.held.pop(token)
        self.totals["settled"] += outcome == "accepted"
        if self.queues.get(queue.name) is not queue:
            return frozenset()
        queue.unsettled -= 1
        if gives_credit and consumer in queue.credit:
            queue.credit[consumer] += 1
        if outcome == "rejected":
            self._died(queue, copy, "rejected")
            return frozenset({queue.name})
        queue.counts["settled" if outcome == "accepted" else "returned"] += 1
        self.totals["returned"] += outcome == "returned"
        if outcome == "accepted":
            copy.end("accepted")
        elif word is not None and copy.receipt is not None and copy.receipt.is_awaited:
            queue.counts["given back"] += 1
            copy.end(word)
        else:
            copy.redelivered = True
            insort(queue.ready, copy)
        return frozenset({queue.name})

    def leave(self, consumers: Iterable[int], tokens: Iterable[int]) -> None:
        """Consumers go; what they held goes back to its place."""
        for consumer in consumers:
            for queue in self.queues.values():
                queue.credit.pop(consumer, None)
        self.settle(tokens, "returned")

    def check(self) -> None:
        """Every copy is somewhere, once."""
        ends = ("settled", "expired", "rejected", "given back")
        for queue in self.queues.values():
            dropped = queue.counts["dropped"] if queue.settings.overflow == "drop-head" else 0
            gone = sum(queue.counts[end] for end in ends) + dropped
            assert queue.counts["published"] == len(queue.ready) + queue.unsettled + gone, queue


def _is_cycle(name: str, deaths: tuple[tuple[str, Reason], ...]) -> bool:
    """Did it die here before, and was it never rejected since? Then it would go round for ever."""
    for queue, reason in deaths:
        if reason == "rejected":
            return False
        if queue == name:
            return True
    return False
