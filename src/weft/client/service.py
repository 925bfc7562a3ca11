"""Services: a handler behind a name, as many at a time as it likes, until it is told to stop.

Owns a service's queue, its instances' concurrency and their end. Requests come in from whoever knows the name; what the
handler returns goes back as the reply, and what it raises as an error. The request is accepted once the node has the
reply, so that whatever dies in between, the request is served by another instance.
It must never drop a request that it has begun: `stop` waits for those, and gives back those it has not. It must never
serve a request twice: one that comes again is answered from what is remembered (`answers`, docs/decisions/0031).
Rule: a request's deadline travels with it; what comes too late is dropped, for nobody waits for it any more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from weft.client.again import Question, read_question
from weft.client.answers import Answer, Answers, Standing, request_key
from weft.client.codecs import Encoded, encode
from weft.client.message import Message
from weft.client.receiving import Receiver
from weft.client.replies import ERROR_HEADER
from weft.client.tickets import Cancelled, Slots, Work, caller, is_cancelled, sleep, soon, within
from weft.model.errors import DeadlineExceeded, LocalProtocolError, Refused, Undelivered, WeftError
from weft.model.services import presence_topic
from weft.net.backoff import delays

if TYPE_CHECKING:
    from weft.client.fabric import Fabric

LOG = logging.getLogger("weft.client")
REPLY_S = 10.0
"""How long a reply is tried when the request has no deadline of its own, or has been replied to before."""
ANSWER_S = 2.0
"""How long an answer to a question is tried: it is asked again."""
EVERY_S_MAX = 3_600.0
INSTANCES_MAX = 10_000
"""Instances of a service that are watched at a time; of more, the first to come."""
PRESENCE_S = 2.0
"""How often an instance says that it is there; two silences in a row mean that it is not."""


class Service:
    """One instance of a service; `fabric.service(name)` makes it."""

    def __init__(
        self,
        fabric: Fabric,
        name: str,
        handler: Callable[[Message], Any],
        *,
        concurrency: int,
        presence_s: float = PRESENCE_S,
    ) -> None:
        self.name = name
        self.served = 0
        self._fabric = fabric
        self._call = caller(handler)
        self._concurrency = concurrency
        self._presence_s = presence_s
        self._slots = Slots(concurrency)
        self._receiver: Receiver | None = None
        self._asked: Receiver | None = None
        self._taking: Work | None = None
        """Waits for the next request."""
        self._works: list[Work] = []
        self._stopping = False
        self._answers = Answers()

    async def start(self) -> None:
        """Make the queue, announce the instance, serve."""
        if self._receiver is not None:
            raise LocalProtocolError(f"service {self.name} was started already")
        self._receiver = self._receive()
        await self._receiver.ready()
        self._asked = self._fabric.subscribe(presence_topic(self.name, "ask"))
        await self._asked.ready()
        self._taking = Work(self._serve)
        self._works = [Work(self._answer_asked), Work(self._announce_often)]
        await self._announce("up")

    @property
    def is_started(self) -> bool:
        """Was `start` called?"""
        return self._receiver is not None

    def _receive(self) -> Receiver:
        capabilities = [*self._fabric.dialect.queues, *self._fabric.dialect.serving]
        return self._fabric.receive(self.name, accept="explicit", credit=self._concurrency, capabilities=capabilities)

    async def stop(self, drain_s: float = 30.0) -> None:
        """Take no more requests, finish those that are begun, and go."""
        if self._stopping or self._receiver is None:
            return
        self._stopping = True
        try:
            await self._announce("down")
            # What is still under way is given back as it comes.
            self._receiver.set_window(0)
            await within(drain_s, self._slots.settle)
        except (WeftError, TimeoutError) as error:
            LOG.warning("service %s ends with requests unfinished: %s", self.name, error)
        works = [*self._works, *([] if self._taking is None else [self._taking])]
        for work in works:
            work.cancel()
        await self._receiver.close()
        if self._asked is not None:
            await self._asked.close()
        for work in works:
            await work.join()

    async def _serve(self) -> None:
        """Take the next request and serve it, while a successor waits for the one after it."""
        message = await self._next()
        while message is not None:
            await self._slots.take()
            if not self._stopping:
                soon(self._take_on)
                await self._handle(message)
                return
            self._slots.give()
            message.release()
            message = await self._next()

    def _take_on(self) -> None:
        if not self._stopping:
            self._taking = Work(self._serve)

    async def _next(self) -> Message | None:
        """The next request; a queue that is deleted under the service is made again. None at the end."""
        pauses = delays()
        while self._receiver is not None:
            try:
                return await self._receiver.__anext__()
            except Refused as error:
                if self._stopping:
                    break
                LOG.warning("service %s: %s", self.name, error)
                await sleep(next(pauses))
                try:
                    self._receiver = self._receive()
                except WeftError:
                    break  # it was the client that was refused, not the queue
            except WeftError:
                break  # the client is closed
        return None

    async def _handle(self, message: Message) -> None:
        key = None
        try:
            key = request_key(message)
            standing = Standing.NEW if key is None else self._answers.begin(key, message)
            if standing is Standing.NEW:
                await self._answer(message, key)
            elif standing is not Standing.BEGUN:
                await self._answer_again(message, key or "")
        except WeftError as error:
            # The reply could not be given: another try, by whichever instance gets it.
            LOG.warning("service %s could not reply: %s", self.name, error)
            message.retry()
        except ValueError as error:
            # A message that is none: nobody else could read it either.
            LOG.warning("service %s was sent what is no request: %s", self.name, error)
            if key is not None:
                self._answers.end(key, None)
            message.reject(str(error))
        finally:
            self._slots.give()

    async def _answer(self, message: Message, key: str | None) -> None:
        remaining_s = _remaining_s(message)
        answer = await self._ask_handler(message, remaining_s)
        messages = [message] if key is None else self._answers.end(key, answer)
        if answer is None:
            for each in messages:
                each.accept()  # too late: nobody waits any more
            return
        if not message.durable:
            # With the reply, in one write: the request is no safer than that at its node either.
            message.accept()
        try:
            if message.reply_to is not None:
                await self._reply(message, key, answer, remaining_s)
            elif answer.error is not None:
                LOG.error("service %s failed, and nobody is to be told: %s", self.name, answer.data.decode())
        except WeftError:
            if key is not None:
                self._answers.forget(key)
            for each in messages:
                each.retry()
            raise
        self.served += 1
        for each in messages:
            each.accept()

    async def _ask_handler(self, message: Message, remaining_s: float | None) -> Answer | None:
        """What the handler returns or raises; None if it is too late for either."""
        if remaining_s is not None and remaining_s <= 0:
            return None
        try:
            value = await within(remaining_s, self._call, message)
            return _answer(b"" if value is None else value)
        except (Exception, Cancelled) as error:
            if is_cancelled():
                raise
            left_s = _remaining_s(message)
            if isinstance(error, TimeoutError) and left_s is not None and left_s <= 0:
                return None
            return _failed(error)

    async def _answer_again(self, message: Message, key: str) -> None:
        """A request that was answered, or is not to be served any more, has come again. Its reply may have been lost
        here, of which its client does not know; a client that is away itself asks when it is back. So it is tried for
        as long as ways take to be found again, and others do not wait until its deadline.
        """
        answer = self._answers.reply(key)
        if answer is not None and message.reply_to is not None:
            remaining_s = _remaining_s(message)
            await self._reply(message, key, answer, REPLY_S if remaining_s is None else min(remaining_s, REPLY_S))
        message.accept()

    async def _reply(self, message: Message, key: str | None, answer: Answer, remaining_s: float | None) -> None:
        correlation = key or message.correlation_id
        if correlation is None:
            correlation = message.message_id
        to = message.reply_to or ""
        deadline = monotonic() + (REPLY_S if remaining_s is None else max(remaining_s, 0.1))
        for pause_s in delays():
            if pause_s:
                await sleep(pause_s)
            left_s = deadline - monotonic()
            if left_s <= 0:
                return
            try:
                await self._give(to, correlation, answer, left_s, batchable=message.is_settled)
            except (Undelivered, Refused, DeadlineExceeded):
                continue  # who asked is reconnecting, or gone: the deadline tells
            except LocalProtocolError as error:
                if answer.error == type(error).__name__:
                    raise
                # Too large for the node, say: whoever serves it next could not send it either.
                answer = _failed(error)
                if key is not None:
                    self._answers.end(key, answer)
                continue
            return

    def _give(
        self,
        to: str,
        correlation: Any,
        answer: Answer,
        timeout_s: float,
        *,
        batchable: bool = False,
    ) -> Any:
        return self._fabric.reply(
            to,
            Encoded(answer.data, answer.content_type),
            correlation_id=correlation,
            headers=None if answer.error is None else {ERROR_HEADER: answer.error},
            timeout_s=timeout_s,
            batchable=batchable,
        )

    # questions about requests

    async def _answer_question(self, question: Question) -> None:
        """A client that was cut off wants to know what became of its requests; it asks again until it knows."""
        found = self._answers.ask(question.ids, is_final=question.is_final)
        with contextlib.suppress(Undelivered, Refused, DeadlineExceeded):
            for key, answer in found.replies:
                await self._give(question.to, key, answer, ANSWER_S)
            word, headers = question.answer(found)
            await self._fabric.reply(question.to, word, correlation_id=None, headers=headers, timeout_s=ANSWER_S)

    # presence

    async def _announce(self, state: str) -> None:
        note = {"service": self.name, "instance": self._fabric.name, "state": state, "every_s": self._presence_s}
        await self._fabric.publish(presence_topic(self.name), note, durable=False, ttl_ms=10_000)

    async def _announce_often(self) -> None:
        told, due = self._fabric.core.connections, monotonic() + self._presence_s
        while not self._stopping:
            await sleep(min(self._presence_s, PRESENCE_S))
            # The node has said that a lost connection's instance is gone, and does not know when the next word is due.
            is_new = self._fabric.core.connections != told
            if not self._stopping and self._fabric.is_connected and (is_new or monotonic() >= due):
                told, due = self._fabric.core.connections, monotonic() + self._presence_s
                with contextlib.suppress(Undelivered, Refused, DeadlineExceeded):
                    await self._announce("up")

    async def _answer_asked(self) -> None:
        if self._asked is None:
            return
        try:
            async for message in self._asked:
                question = read_question(message)
                if question is not None:
                    await self._answer_question(question)
                    continue
                with contextlib.suppress(Undelivered, Refused, DeadlineExceeded):
                    await self._announce("up")
        except WeftError:
            return  # the client is closed


def read_note(message: Message) -> tuple[str, str, float] | None:
    """(instance, `up` or `down`, seconds until the next note) of an announcement; None if it is none."""
    try:
        note = message.body
        instance, state, every_s = str(note["instance"]), str(note["state"]), float(note["every_s"])
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    return (instance, state, every_s) if state in ("up", "down") and 0 < every_s < EVERY_S_MAX else None


async def presence(fabric: Fabric, name: str, wait_s: float) -> list[str]:
    """The instances of a service that answer within a time."""
    found: set[str] = set()
    async with fabric.subscribe(presence_topic(name)) as notes:
        await fabric.publish(presence_topic(name, "ask"), b"", durable=False, ttl_ms=10_000)
        end = monotonic() + wait_s
        while (left_s := end - monotonic()) > 0:
            message = await notes.next(left_s)
            note = None if message is None else read_note(message)
            if note is not None and note[1] == "up":
                found.add(note[0])
    return sorted(found)


async def watch(fabric: Fabric, name: str) -> AsyncIterator[tuple[str, str]]:
    """Who joins and who leaves: (instance, `up` or `down`), those that are there first."""
    seen: dict[str, float] = {}
    async with fabric.subscribe(presence_topic(name)) as notes:
        await fabric.publish(presence_topic(name, "ask"), b"", durable=False, ttl_ms=10_000)
        while True:
            soonest_s = min(seen.values(), default=monotonic() + 1.0) - monotonic()
            message = await notes.next(max(soonest_s, 0.01))
            note = None if message is None else read_note(message)
            if note is not None:
                instance, state, every_s = note
                is_new = instance not in seen
                if state == "up":
                    if is_new and len(seen) >= INSTANCES_MAX:
                        continue
                    seen[instance] = monotonic() + 2 * every_s
                else:
                    seen.pop(instance, None)
                if is_new == (state == "up"):
                    yield instance, state
            for instance in [instance for instance, at in seen.items() if at <= monotonic()]:
                del seen[instance]
                yield instance, "down"


def _failed(error: BaseException) -> Answer:
    return _answer(str(error).encode(errors="replace").decode(), type(error).__name__)


def _answer(value: Any, error: str | None = None) -> Answer:
    """A reply in bytes: what cannot be said must fail here, where it still becomes an error for who asked."""
    data, content_type = encode(value)
    return Answer(data.encode() if isinstance(data, str) else data, content_type, error)


def _remaining_s(message: Message) -> float | None:
    at_s = message.delivery.expires_s
    return None if at_s is None else at_s - time()
