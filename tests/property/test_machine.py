"""Any order of steps, by clients of both protocols: the node does what the model says.

Owns one Hypothesis machine. Each rule is first taken by the model, then by the node over one of the protocols; then
everything that clients and operators can see is compared: outcomes, returns, deliveries with their order and flags,
depths and counters. At the end all is consumed, and nothing may be left.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pamqp import commands
from proton import Delivery, Link

from property.model import Binding, Copy, Model, Outcome, Result, Settings
from property.model import Message as Letter
from property.node import Node
from property.peer091 import Content, Peer091
from property.peer10 import Peer10, decode
from property.publishers import Publishers
from property.receipts import Fate, Window

EXCHANGES = ["x0", "x1", "x2"]
QUEUES = ["q0", "q1", "q2", "q3"]
KINDS = ["direct", "topic", "fanout", "headers"]
STREAM = "s0"
NAMES = [*QUEUES, *EXCHANGES, STREAM]
KEYS = ["", "a", "b", "a.b", "a.b.a"]
PATTERNS = ["", "a", "a.b", "#", "*", "*.b", "a.#", "#.a", "a.*.a", "#.b.#", "*.*"]
STATES: dict[Outcome, list[Any]] = {
    "accepted": [Delivery.ACCEPTED],
    "rejected": [Delivery.REJECTED],
    "returned": [Delivery.RELEASED, Delivery.MODIFIED],
}

exchange_names = st.sampled_from(EXCHANGES)
queue_names = st.sampled_from(QUEUES)
indexes = st.integers(0, 31)
headers = st.dictionaries(st.sampled_from(["h", "i"]), st.integers(1, 2)).map(
    lambda table: tuple(sorted(table.items()))
)
matches = st.sampled_from(["all", "any"])
windows = st.sampled_from([None, None, Window(), Window(ms=20), Window(ids_max=2)])
bindings = st.tuples(exchange_names, st.sampled_from(NAMES), st.sampled_from(PATTERNS), matches, headers)


@st.composite
def _settings(draw: st.DrawFn) -> Settings:
    """Arguments of a queue, with a key for dead letters only where there are any."""
    exchange = draw(st.sampled_from([None, "", *EXCHANGES]))
    return Settings(
        length_max=draw(st.sampled_from([None, 1, 2])),
        overflow=draw(st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"])),
        priority_max=draw(st.sampled_from([0, 0, 2])),
        ttl_ms=draw(st.sampled_from([None, 5, 12])),
        dead_letter_exchange=exchange,
        dead_letter_key=None if exchange is None else draw(st.sampled_from([None, "a", *QUEUES])),
        barrier=draw(windows),
        end_to_end=draw(st.booleans()),
    )


settings_of_queues = st.one_of(st.just(Settings()), _settings())


@st.composite
def _letter(draw: st.DrawFn) -> tuple[str, Letter]:
    """An exchange and a message for it, that has a chance to be routed."""
    exchange = draw(st.sampled_from(["", *EXCHANGES]))
    key = draw(st.sampled_from(KEYS) if exchange else queue_names)
    ttl_ms = draw(st.sampled_from([None, None, 3, 8]))
    name = draw(st.sampled_from([None, None, "1", "2", "3"]))
    return exchange, Letter(0, key, draw(headers), draw(st.integers(0, 3)), ttl_ms, name)


letters = _letter()
batches = st.lists(letters, min_size=1, max_size=4)


@dataclass
class Holder:
    """A consumer of a queue, or a channel that only gets: where deliveries come in, and what it has not settled."""

    number: int
    queue: str
    peer: Peer091 | Peer10
    channel: int = 0
    link: Link | None = None
    held: dict[int, Any] = field(default_factory=dict)
    """Delivery tags, or deliveries of Proton, by token."""
    is_open: bool = True
    """False once its queue was deleted or it was cancelled: it gets no more, but may still settle."""


class BrokerMachine(RuleBasedStateMachine):
    """Clients of both protocols at one node."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.model = Model(self.node.now_ns)
        self.control = Peer091(self.node)
        self.channel = self.control.open_channel()
        self.publishers = Publishers(self.node, self.control)
        self.messages = 0
        self.peer091 = Peer091(self.node)
        self.peer10 = Peer10(self.node)
        self.holders: list[Holder] = []
        self.numbers = 0
        self.is_sane = True

    def teardown(self) -> None:
        try:
            if self.is_sane:
                self.drain()
        finally:
            self.node.close()

    # how a step is taken

    def decide(self, action: Callable[[Model], object]) -> bool:
        """Let the model take a step. No if its result is open, and then the step is not taken at all."""
        trial = deepcopy(self.model)
        action(trial)
        if trial.is_open:
            return False
        self.model = trial
        self.is_sane = False
        return True

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # topology

    @initialize(
        kinds=st.tuples(*[st.tuples(st.sampled_from(KINDS), windows)] * len(EXCHANGES)),
        queues=st.tuples(*[settings_of_queues] * len(QUEUES)),
        window=windows,
        rows=st.lists(bindings, min_size=2, max_size=8),
    )
    def begin(
        self,
        kinds: tuple[tuple[str, Window | None], ...],
        queues: tuple[Settings, ...],
        window: Window | None,
        rows: list[tuple[str, str, str, str, Any]],
    ) -> None:
        """Something to start with, or it takes many steps until anything happens."""
        for name, (kind, window) in zip(EXCHANGES, kinds, strict=True):
            self.declare_exchange(name, kind, window)
        for name, settings in zip(QUEUES, queues, strict=True):
            self.declare_queue(name, settings)
        self.declare_queue(STREAM, Settings(stream=True, barrier=window))
        for row in rows:
            self.bind(*row)

    @rule(
        change=st.sampled_from(["bind", "bind", "bind", "unbind", "declare", "delete_exchange", "delete_queue"]),
        row=bindings,
        kind=st.sampled_from(KINDS),
        settings=settings_of_queues,
        window=windows,
    )
    def change_topology(
        self, change: str, row: tuple[str, str, str, str, Any], kind: str, settings: Settings, window: Window | None
    ) -> None:
        """Seldom, as far as it destroys something: the other steps need queues to matter."""
        exchange, name, *_ = row
        match change:
            case "bind":
                self.bind(*row)
            case "unbind":
                self.unbind()
            case "declare" if name in QUEUES:
                self.declare_queue(name, settings)
            case "declare" if name == STREAM:
                self.declare_queue(name, Settings(stream=True, barrier=window))
            case "declare":
                self.declare_exchange(name, kind, window)
            case "delete_exchange" if exchange in self.model.exchanges:
                self.delete_exchange(exchange)
            case "delete_queue" if name in self.model.queues:
                self.delete_queue(name)

    def declare_exchange(self, name: str, kind: str, window: Window | None) -> None:
        if name in self.model.exchanges:
            kind = self.model.exchanges[name]
            window = self.model.barriers[name].window if name in self.model.barriers else None
        self.model.declare_exchange(name, kind, window)
        self.control.declare_exchange(self.channel, name, kind, {} if window is None else window.arguments())

    def delete_exchange(self, name: str) -> None:
        self.model.delete_exchange(name)
        self.control.call(self.channel, commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)

    def declare_queue(self, name: str, settings: Settings) -> None:
        known = self.model.queues.get(name)
        settings = settings if known is None else known.settings
        self.model.declare_queue(name, settings)
        answer = self.control.declare_queue(self.channel, name, settings.arguments(), durable=settings.stream)
        queue = self.model.queues[name]
        assert (answer.message_count, answer.consumer_count) == (len(queue.ready), len(queue.credit))

    def delete_queue(self, name: str) -> None:
        count = self.model.delete_queue(name)
        answer = self.control.call(self.channel, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
        assert answer.message_count == count
        for holder in self.holders:
            if holder.queue == name and holder.is_open:
                self.see_cancelled(holder)

    def see_cancelled(self, holder: Holder) -> None:
        """A consumer is told that its queue is gone."""
        holder.is_open = False
        if isinstance(holder.peer, Peer091):
            holder.peer.expect(holder.channel, commands.Basic.Cancel)
            return
        assert holder.link is not None
        holder.peer.sync()
        assert holder.link.state & Link.REMOTE_CLOSED
        condition = holder.link.remote_condition
        assert condition is not None
        assert condition.name == "amqp:resource-deleted"
        for token in self.tokens_of([holder]):
            self.model.held.pop(token)
        self.forget([holder])
        holder.link.close()
        holder.peer.sync()

    def bind(self, source: str, to: str, key: str, match: str, table: tuple[tuple[str, object], ...]) -> None:
        binding = self.binding(source, to, key, match, table)
        if binding is not None:
            self.model.bind(binding)
            self.change_binding("Bind", binding)

    def unbind(self) -> None:
        if self.model.bindings:
            binding = min(self.model.bindings)
            self.model.unbind(binding)
            self.change_binding("Unbind", binding)

    def binding(self, source: str, to: str, key: str, match: str, table: Any) -> Binding | None:
        """A binding between things that exist, with arguments where they mean something."""
        kind: Literal["queue", "exchange"] = "exchange" if to in EXCHANGES else "queue"
        if source not in self.model.exchanges or to not in {**self.model.queues, **self.model.exchanges}:
            return None
        is_headers = self.model.exchanges[source] == "headers"
        return Binding(source, kind, to, key, (("x-match", match), *table) if is_headers else ())

    def change_binding(self, action: str, binding: Binding) -> None:
        arguments = dict(binding.arguments)
        if binding.kind == "queue":
            ends = {"queue": binding.destination, "exchange": binding.source}
            group: Any = commands.Queue
        else:
            ends = {"destination": binding.destination, "source": binding.source}
            group = commands.Exchange
        method = getattr(group, action)(**ends, routing_key=binding.key, arguments=arguments)
        self.control.call(self.channel, method, getattr(group, action + "Ok"))

    # publishing

    def decide_publish(self, exchange: str, letter: Letter) -> tuple[Letter, Result] | None:
        """Give the message its number, which is its body, and let the model route it."""
        if exchange not in {"", *self.model.exchanges}:
            return None
        letter = replace(letter, number=self.messages)
        results: list[Result] = []
        if not self.decide(lambda model: results.append(model.publish(exchange, letter))):
            return None
        self.messages += 1
        return letter, results[0]

    @rule(batch=batches, mandatory=st.booleans())
    def publish_091(self, batch: list[tuple[str, Letter]], mandatory: bool) -> None:
        for exchange, letter in batch:
            self.publish_one_091(exchange, letter, mandatory)
            self.agree()

    def publish_one_091(self, exchange: str, letter: Letter, mandatory: bool) -> None:
        decided = self.decide_publish(exchange, letter)
        if decided is None:
            return
        sent, result = decided
        returned = self.publishers.publish_091(exchange, sent, mandatory)
        assert returned == ([str(sent.number).encode()] if mandatory and not result.is_taken else [])

    @rule(batch=batches)
    def publish_10(self, batch: list[tuple[str, Letter]]) -> None:
        for exchange, letter in batch:
            if exchange or letter.key in self.model.queues:
                decided = self.decide_publish(exchange, letter)
                if decided is not None:
                    self.publishers.publish_10(exchange, decided[0])
                self.agree()

    # consuming

    @precondition(lambda self: self.model.queues)
    @rule(name=queue_names, index=indexes)
    def get(self, name: str, index: int) -> None:
        """Any channel may get, also one that consumes."""
        if name not in self.model.queues:
            return
        channels = [one for one in self.holders if isinstance(one.peer, Peer091)]
        if channels and index % 2:
            holder = channels[index % len(channels)]
        else:
            holder = Holder(self.number(), "", self.peer091, self.peer091.open_channel())
            self.holders.append(holder)
        self.get_one(holder, name)

    def get_one(self, holder: Holder, name: str) -> int | None:
        """The token of what was got, if the queue had something and the step was taken."""
        token = self.number()
        if not self.decide(lambda model: model.get(name, token)):
            return None
        assert isinstance(holder.peer, Peer091)
        content = holder.peer.get(holder.channel, name)
        if token not in self.model.held:
            assert content is None
            return None
        copy = self.model.held[token].copy
        assert content is not None
        assert (content.body, content.method.redelivered) == (str(copy.message.number).encode(), copy.redelivered)
        holder.held[token] = content.method.delivery_tag
        return token

    @precondition(lambda self: self.model.queues)
    @rule(name=queue_names, prefetch=st.integers(1, 3))
    def consume(self, name: str, prefetch: int) -> None:
        number = self.number()
        if name not in self.model.queues or not self.decide(lambda model: model.consume(name, number, prefetch)):
            return
        channel = self.peer091.open_channel()
        self.peer091.call(channel, commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
        method = commands.Basic.Consume(queue=name, consumer_tag=str(number))
        self.peer091.call(channel, method, commands.Basic.ConsumeOk)
        self.holders.append(Holder(number, name, self.peer091, channel))

    @precondition(lambda self: self.model.queues)
    @rule(name=queue_names, credit=st.integers(0, 3))
    def receive(self, name: str, credit: int) -> None:
        number = self.number()
        if name not in self.model.queues or not self.decide(lambda model: model.consume(name, number, credit)):
            return
        link = self.peer10.receiver(self.peer10.session(), str(number), f"/queues/{name}")
        self.peer10.flow(link, credit)
        self.holders.append(Holder(number, name, self.peer10, link=link))

    def pick(self, index: int, wanted: Callable[[Holder], object]) -> Holder | None:
        found = [holder for holder in self.holders if wanted(holder)]
        return found[index % len(found)] if found else None

    @precondition(lambda self: any(one.link and one.is_open for one in self.holders))
    @rule(index=indexes, credit=st.integers(1, 3))
    def grant(self, index: int, credit: int) -> None:
        holder = self.pick(index, lambda one: one.link and one.is_open)
        assert holder is not None
        name = holder.queue
        if self.decide(lambda model: model.consume(name, holder.number, credit)):
            assert isinstance(holder.peer, Peer10)
            assert holder.link is not None
            holder.peer.flow(holder.link, credit)

    # settling

    @precondition(lambda self: any(one.held for one in self.holders))
    @rule(index=indexes, which=indexes, outcome=st.sampled_from([*STATES]), variant=st.booleans())
    def settle(self, index: int, which: int, outcome: Outcome, variant: bool) -> None:
        """One delivery, or with 0-9-1 (`variant`) all up to it."""
        holder = self.pick(index, lambda one: one.held)
        assert holder is not None
        tokens = list(holder.held)
        at = which % len(tokens)
        is_091 = isinstance(holder.peer, Peer091)
        tokens = tokens[: at + 1] if is_091 and variant else [tokens[at]]
        word: Fate | None = None
        if outcome == "returned" and not is_091:
            word = "modified" if variant else "released"
        if not self.decide(lambda model: model.settle(tokens, outcome, gives_credit=is_091, word=word)):
            return
        told = [holder.held.pop(token) for token in tokens]
        if isinstance(holder.peer, Peer091):
            holder.peer.send(holder.channel, _settlement(told[-1], outcome, multiple=variant))
        else:
            holder.peer.settle(told[-1], STATES[outcome][variant and outcome == "returned"])

    # leaving

    def tokens_of(self, holders: list[Holder], peer: Peer091 | Peer10 | None = None) -> list[int]:
        """What goes back when these leave, or with a peer all of its connection."""
        assert peer is None or all(holder.peer is peer for holder in holders)
        return [token for holder in holders for token in holder.held]

    def forget(self, holders: list[Holder], peer: Peer091 | Peer10 | None = None) -> None:
        """It has gone back."""
        assert peer is None or all(holder.peer is peer for holder in holders)
        for holder in holders:
            holder.held.clear()

    @precondition(lambda self: any(one.queue and one.is_open and one.channel for one in self.holders))
    @rule(index=indexes)
    def cancel(self, index: int) -> None:
        """A consumer of 0-9-1 goes, its channel stays with what it holds."""
        holder = self.pick(index, lambda one: one.queue and one.is_open and one.channel)
        assert holder is not None
        assert isinstance(holder.peer, Peer091)
        self.model.leave([holder.number], [])
        method = commands.Basic.Cancel(consumer_tag=str(holder.number))
        holder.peer.call(holder.channel, method, commands.Basic.CancelOk)
        holder.is_open = False

    @precondition(lambda self: self.holders)
    @rule(index=indexes, by_session=st.booleans())
    def leave(self, index: int, by_session: bool) -> None:
        """A channel, a link or a session is closed with what it holds."""
        holder = self.holders[index % len(self.holders)]
        if not self.decide(lambda model: model.leave([holder.number], self.tokens_of([holder]))):
            return
        self.holders.remove(holder)
        self.forget([holder])
        if isinstance(holder.peer, Peer091):
            holder.peer.call(holder.channel, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
            return
        assert holder.link is not None
        if by_session or not holder.is_open:
            holder.link.session.close()
        else:
            holder.link.close()
        holder.peer.sync()

    @precondition(lambda self: self.holders)
    @rule(is_091=st.booleans(), cleanly=st.booleans())
    def lose(self, is_091: bool, cleanly: bool) -> None:
        """A connection with all its consumers is closed, or is gone without a word."""
        peer: Peer091 | Peer10 = self.peer091 if is_091 else self.peer10
        gone = [holder for holder in self.holders if holder.peer is peer]
        numbers = [holder.number for holder in gone]
        tokens = self.tokens_of(gone, peer)
        if not self.decide(lambda model: model.leave(numbers, tokens)):
            return
        self.forget(gone, peer)
        self.holders = [holder for holder in self.holders if holder.peer is not peer]
        if not cleanly:
            self.node.cut(peer.conn)
        elif isinstance(peer, Peer091):
            peer.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        else:
            peer.connection.close()
            peer.sync()
        assert peer.conn in self.node.closed
        if is_091:
            self.peer091 = Peer091(self.node)
        else:
            self.peer10 = Peer10(self.node)

    @precondition(lambda self: any(queue.ready for queue in self.model.queues.values()))
    @rule(ms=st.integers(1, 15))
    def advance(self, ms: int) -> None:
        now_ns = self.node.now_ns + ms * 1_000_000
        if self.decide(lambda model: model.advance(now_ns)):
            self.node.advance(now_ns)

    # what must hold after each step

    @invariant()
    def agree(self) -> None:
        self.is_sane = False
        self.publishers.check(self.model.answers)
        self.model.answers.clear()
        self.see_deliveries()
        self.model.check()
        rows = {row["name"]: row for row in self.node.engine.inspect("queues")}
        assert rows.keys() == self.model.queues.keys()
        for name, queue in self.model.queues.items():
            expected = (len(queue.ready), queue.unsettled, len(queue.credit))
            assert self.node.engine.queue_stats("/", name) == expected, name
            for counter in ("published", "delivered", "settled", "returned", "expired", "dropped", "dead_lettered"):
                assert rows[name][counter] == queue.counts[counter], (name, counter)
            assert rows[name]["duplicate"] == (queue.barrier.duplicates if queue.barrier else None), name
        if self.model.barriers:
            found = {row["name"]: row["duplicate"] for row in self.node.engine.inspect("exchanges")}
            for name, barrier in self.model.barriers.items():
                assert found[name] == barrier.duplicates, name
        stats = self.node.engine.stats()
        for total in ("published", "unroutable", "delivered", "settled", "returned", "dead_lettered", "duplicate"):
            assert stats[total] == self.model.totals[total], total
        assert stats["connections"] == 4
        assert stats["ready"] == sum(len(queue.ready) for queue in self.model.queues.values())
        self.is_sane = True

    def see_deliveries(self) -> None:
        """What consumers got is what the model sent: all of it, to those who had credit, to each in order."""
        for name in self.model.queues:
            sent = self.model.sent(name)
            for holder in self.holders:
                if holder.queue == name and holder.is_open:
                    self.match(holder, name, sent)
            assert sent == [], f"not delivered from {name}"

    def match(self, holder: Holder, name: str, sent: list[Copy]) -> None:
        at = 0
        for number, redelivered, told in self.deliveries(holder):
            while at < len(sent) and (sent[at].message.number, sent[at].redelivered) != (number, redelivered):
                at += 1
            assert at < len(sent), f"{name} delivered {number} (again: {redelivered}), expected of {sent}"
            token = self.number()
            self.model.got(token, name, sent.pop(at), holder.number)
            assert self.model.queues[name].credit[holder.number] >= 0
            holder.held[token] = told

    def deliveries(self, holder: Holder) -> list[tuple[int, bool, Any]]:
        if isinstance(holder.peer, Peer091):
            holder.peer.read()
            contents: list[Content] = holder.peer.take(holder.channel, commands.Basic.Deliver)
            assert all(content.method.consumer_tag == str(holder.number) for content in contents)
            return [(int(one.body), one.method.redelivered, one.method.delivery_tag) for one in contents]
        assert holder.link is not None
        found = []
        for delivery, data in holder.peer.take(holder.link):
            message = decode(data)
            found.append((int(bytes(message.body)), not message.first_acquirer, delivery))
        return found

    # the end

    def drain(self) -> None:
        """Everybody goes and everything is consumed: then nothing is left, nowhere."""
        self.lose(is_091=True, cleanly=False)
        self.agree()
        self.lose(is_091=False, cleanly=False)
        self.agree()
        if self.holders:
            return  # that step is open
        holder = Holder(self.number(), "", self.control, self.control.open_channel())
        for name in self.model.queues.keys() & set(QUEUES):
            while (token := self.get_one(holder, name)) is not None:
                self.model.settle([token], "accepted")
                ack = commands.Basic.Ack(delivery_tag=holder.held.pop(token))
                self.control.send(holder.channel, ack)
                self.agree()
        self.read_stream(holder.channel)
        if not any(queue.ready for queue in self.model.queues.values()):
            assert not self.publishers.waiting
            stats = self.node.engine.stats()
            assert (stats["ready"], stats["unsettled"], stats["memory_bytes"]) == (0, 0, 0)

    def read_stream(self, channel: int) -> None:
        """What is kept is what was routed there, in order; then it goes with its stream."""
        if STREAM not in self.model.queues:
            return
        arguments = {"x-stream-offset": "first"}
        self.control.call(channel, commands.Basic.Qos(prefetch_count=60_000), commands.Basic.QosOk)
        method = commands.Basic.Consume(queue=STREAM, consumer_tag="reader", arguments=arguments)
        self.control.call(channel, method, commands.Basic.ConsumeOk)
        found = [int(one.body) for one in self.control.take(channel, commands.Basic.Deliver)]
        assert found == [copy.message.number for copy in self.model.queues[STREAM].ready]
        self.control.call(channel, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        self.delete_queue(STREAM)


def _settlement(tag: int, outcome: Outcome, *, multiple: bool) -> Any:
    if outcome == "accepted":
        return commands.Basic.Ack(delivery_tag=tag, multiple=multiple)
    return commands.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=outcome == "returned")


TestBroker = BrokerMachine.TestCase
TestBroker.settings = hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
