"""The driver's own logic, on a scripted engine and real sockets: what each signal and event makes it do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic_ns
from typing import Any, cast, get_args

import pytest
import pytest_asyncio

from unit.node.fake import FakeEngine
from weft._kernel import DISK, EVENTS, FLUSH, MORE, OUTPUT, PAUSE, TIMER, Engine
from weft.model.changes import Change, CloseConnection, Quiesce, Refuse
from weft.model.events import AuthRequested, Event, HangUp, QueueUnused, ReadingResumed
from weft.net.endpoint import Endpoint
from weft.net.listen import Listener, listen
from weft.node import Driver
from weft.node import driver as driver_module

ASK = AuthRequested(7, 1, "1.0", "PLAIN", b"", 0)


class Recorder:
    """A controller that notes events and answers from a table."""

    def __init__(self, answers: dict[type, list[Change]] | None = None) -> None:
        self.events: list[Event] = []
        self.answers = answers or {}

    wants: frozenset[type] = frozenset(get_args(Event))

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[Change]:
        self.events += events
        return [change for event in events for change in self.answers.get(type(event), [])]


class Setup:
    """A driver that listens, its scripted engine, and peers."""

    def __init__(self, connections_max: int) -> None:
        self.engine = FakeEngine()
        self.controller = Recorder()
        self.opened: list[tuple[int, bool, bool]] = []
        self.driver = Driver(
            cast("Engine", self.engine),
            [self.controller],
            connections_max=connections_max,
            on_opened=lambda *connection: self.opened.append(connection),
        )
        self.listener: Listener
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opened = len(self.engine.told("open"))
        streams = await self.dial()
        await self.until(lambda: len(self.engine.told("open")) > opened)
        return streams

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listener.server.sockets[0].getsockname())
        self._writers.append(writer)
        return reader, writer

    async def until(self, condition: Callable[[], Any]) -> None:
        """Let the loop turn until something is so; the test's time limit ends what never comes."""
        while not condition():  # noqa: ASYNC110 - the double has no event to wait for
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.listener.close()
        for connection in list(self.driver.connections.values()):
            connection.transport.abort()
        await self.driver.stop()
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup(connections_max=3)
    made.listener = await listen(Endpoint("127.0.0.1", 0), made.driver.accept)
    yield made
    await made.close()


async def test_bytes_reach_the_engine_as_they_came(setup: Setup) -> None:
    _, writer = await setup.connect()
    writer.write(b"AMQP")
    await setup.until(lambda: setup.engine.told("receive"))
    assert setup.engine.told("open") == [(False, True)]
    assert setup.opened == [(1, True, False, None)]
    assert setup.engine.told("receive") == [(1, b"AMQP")]
    writer.close()
    await setup.until(lambda: setup.engine.told("close"))
    assert setup.engine.told("close") == [(1, "closed by the peer")]


async def test_output_leaves_in_one_flush_per_turn(setup: Setup) -> None:
    first, _ = await setup.connect()
    second, _ = await setup.connect()
    setup.engine.output.append([(1, b"one"), (2, b"two")])
    setup.driver.on_signals(OUTPUT)
    setup.driver.on_signals(OUTPUT)
    assert not setup.engine.told("poll_transmit")
    assert await first.readexactly(3) == b"one"
    assert await second.readexactly(3) == b"two"
    assert len(setup.engine.told("poll_transmit")) == 1


async def test_flush_does_not_wait(setup: Setup) -> None:
    reader, _ = await setup.connect()
    setup.engine.output.append([(1, b"now")])
    setup.driver.on_signals(FLUSH)
    assert setup.engine.told("poll_transmit")
    assert await reader.readexactly(3) == b"now"


async def test_the_disk_works_while_output_is_written(setup: Setup) -> None:
    await setup.connect()
    setup.engine.output.extend([[(1, b"first")], [(1, b"second")]])
    setup.engine.answer("apply nothing", OUTPUT | DISK, 0)
    setup.engine.calls.clear()
    setup.driver.on_signals(FLUSH | DISK)
    assert [call[0] for call in setup.engine.calls] == [
        *("poll_disk", "poll_transmit", "apply"),
        *("poll_disk", "poll_transmit", "apply"),
    ]


async def test_one_flush_ends_however_much_there_is(setup: Setup) -> None:
    reader, _ = await setup.connect()
    rounds = driver_module.FLUSH_ROUNDS_MAX + 1
    setup.engine.output.extend([(1, b"x")] for _ in range(rounds))
    setup.driver.flush()
    assert len(setup.engine.told("poll_transmit")) == driver_module.FLUSH_ROUNDS_MAX
    assert len(await reader.readexactly(rounds)) == rounds


async def test_a_peer_that_does_not_read_makes_the_engine_stop_and_go_on(setup: Setup) -> None:
    reader, _ = await setup.connect()
    size = 0
    while not setup.engine.told("writable"):
        setup.engine.output.append([(1, bytes(1_000_000))])
        size += 1_000_000
        setup.driver.flush()
        await asyncio.sleep(0)
    assert setup.engine.told("writable") == [(1, False)]
    await reader.readexactly(size)
    await setup.until(lambda: len(setup.engine.told("writable")) == 2)
    assert setup.engine.told("writable")[1] == (1, True)


async def test_bytes_keep_their_order_when_a_full_transport_answers_inside_a_flush(setup: Setup) -> None:
    reader, _ = await setup.connect()
    await setup.connect()
    size = 64_000_000  # more than any socket buffer, so that the first write stops the engine
    setup.engine.answer("writable", FLUSH)
    setup.engine.output.extend([[(2, bytes(size)), (1, b"first ")], [(1, b"second")]])
    setup.driver.flush()
    assert setup.engine.told("writable") == [(2, False)]
    assert await reader.readexactly(12) == b"first second"


async def test_a_paused_peer_is_not_read_until_resumed(setup: Setup) -> None:
    _, writer = await setup.connect()
    setup.engine.answer("receive", PAUSE)
    writer.write(b"a")
    await setup.until(lambda: setup.engine.told("receive"))
    assert not setup.driver.connections[1].transport.is_reading()
    setup.engine.events.append([ReadingResumed(1)])
    setup.driver.on_signals(EVENTS)
    writer.write(b"b")
    await setup.until(lambda: setup.engine.told("receive") == [(1, b"a"), (1, b"b")])


async def test_events_reach_controllers_and_changes_the_engine(setup: Setup) -> None:
    refuse = Refuse(7, 403, "no")
    setup.controller.answers = {AuthRequested: [refuse]}
    setup.engine.answer("apply", EVENTS)
    setup.engine.events.extend([[ASK], [QueueUnused("/", "q", "expired")]])
    setup.driver.on_signals(EVENTS)
    assert setup.controller.events == [ASK, QueueUnused("/", "q", "expired")]
    assert setup.engine.changes() == [(refuse,)]


async def test_a_controller_that_fails_closes_only_who_asked(setup: Setup) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

    def fail(_events: Sequence[Event], _now_ns: int) -> list[Change]:
        raise ZeroDivisionError

    setup.controller.on_events = fail  # type: ignore[method-assign]
    setup.engine.events.append([ASK, QueueUnused("/", "q", "expired")])
    setup.driver.on_signals(EVENTS)
    assert setup.engine.changes() == [(CloseConnection(1, 541, "INTERNAL_ERROR"),)]
    assert isinstance(reported[0]["exception"], ZeroDivisionError)


async def test_late_answers_come_from_any_thread(setup: Setup) -> None:
    await asyncio.to_thread(setup.driver.submit, [Refuse(7, 403, "no")])
    await setup.until(lambda: setup.engine.changes() == [(Refuse(7, 403, "no"),)])


async def test_more_work_waits_for_the_next_turn(setup: Setup) -> None:
    setup.engine.answer("advance", MORE, 0)
    setup.driver.advance_soon()
    setup.driver.advance_soon()
    assert not setup.engine.told("advance")
    await setup.until(lambda: len(setup.engine.told("advance")) == 2)


async def test_the_ticker_wakes_at_the_deadline_and_not_before(setup: Setup) -> None:
    deadline = monotonic_ns() + 30_000_000
    setup.engine.timeout_ns = deadline
    setup.driver.on_signals(TIMER)
    await setup.until(lambda: setup.engine.told("advance"))
    setup.engine.timeout_ns = None
    assert setup.engine.told("advance")[0][0] >= deadline


async def test_an_earlier_deadline_replaces_a_later_one(setup: Setup) -> None:
    setup.engine.timeout_ns = monotonic_ns() + 3_600_000_000_000
    setup.driver.on_signals(TIMER)
    setup.engine.timeout_ns = monotonic_ns() + 1_000_000
    setup.driver.on_signals(TIMER)
    await setup.until(lambda: setup.engine.told("advance"))
    setup.engine.timeout_ns = None


async def test_only_those_are_asked_who_want_one_of_the_events(setup: Setup) -> None:
    narrow = Recorder()
    narrow.wants = frozenset({QueueUnused})
    setup.driver.add_controller(narrow)
    setup.engine.events.append([ReadingResumed(1)])
    setup.driver.on_signals(EVENTS)
    assert (setup.controller.events, narrow.events) == ([ReadingResumed(1)], [])
    both: list[Event] = [ReadingResumed(1), QueueUnused("/", "jobs", "expired")]
    setup.engine.events.append(both)
    setup.driver.on_signals(EVENTS)
    assert (setup.controller.events, narrow.events) == ([ReadingResumed(1), *both], both)


async def test_hanging_up_says_the_last_word_and_reads_on(setup: Setup) -> None:
    reader, writer = await setup.connect()
    setup.engine.output.append([(1, b"close")])
    setup.engine.events.append([HangUp(1)])
    writer.write(b"more of what was wrong")
    setup.driver.on_signals(EVENTS)
    received = len(setup.engine.told("receive"))
    assert await reader.read() == b"close"
    writer.write(b"and more")
    writer.close()
    await setup.until(lambda: setup.engine.told("close"))
    assert len(setup.engine.told("receive")) == received


async def test_a_peer_that_stays_after_the_last_word_is_cut(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "LINGER_S", 0.02)
    _, writer = await setup.connect()
    await setup.connect()
    setup.engine.events.append([HangUp(1), HangUp(2)])
    setup.driver.on_signals(EVENTS)
    await setup.until(lambda: len(setup.engine.told("close")) == 2)
    assert not setup.driver.connections
    writer.close()


async def test_too_many_connections_are_closed_at_once(setup: Setup) -> None:
    for _ in range(3):
        await setup.connect()
    reader, _ = await setup.dial()
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    assert len(setup.engine.told("open")) == 3
    assert len(setup.driver.connections) == 3


async def test_stopping_closes_every_connection_by_its_protocol(setup: Setup) -> None:
    reader, _ = await setup.connect()
    setup.engine.answer("apply", EVENTS | OUTPUT)
    setup.engine.output.append([(1, b"bye")])
    setup.engine.events.append([HangUp(1)])
    stopping = asyncio.create_task(setup.driver.stop())
    assert await reader.read() == b"bye"
    with contextlib.suppress(ConnectionResetError):
        await reader.read()
    setup.driver.connections[1].transport.abort()
    await stopping
    assert setup.engine.changes()[0] == (CloseConnection(1),)


async def test_quiesce_and_resume(setup: Setup) -> None:
    setup.driver.quiesce(True)
    setup.driver.quiesce(False)
    assert setup.engine.changes() == [(Quiesce(True),), (Quiesce(False),)]


async def test_a_peer_that_always_has_another_question_does_not_keep_the_loop(setup: Setup) -> None:
    questions = 3 * driver_module.DISPATCH_ROUNDS_MAX
    setup.controller.answers = {AuthRequested: [Refuse(7, 403, "no")]}
    setup.engine.events.extend([ASK] for _ in range(questions))
    setup.engine.answer("apply", *[EVENTS] * (questions - 1))
    setup.driver.on_signals(EVENTS)
    assert len(setup.controller.events) == driver_module.DISPATCH_ROUNDS_MAX
    turns = 0
    while len(setup.controller.events) < questions:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2
    assert len(setup.engine.changes()) == questions
