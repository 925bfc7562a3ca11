"""Scaling: what is decided, and that the drivers really start and stop."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path

import pytest

from weft.model.errors import ConfigError, Unavailable
from weft.scaling import Commands, Load, LocalProcesses, Request, Scaler, Service, parse

SERVICE = Service("s", command=("x",), min=1, max=8, messages_each=100, up_s=5, down_s=60)


def test_a_file_is_read() -> None:
    text = '[services."user.lifecycle"]\ncommand = ["python", "s.py"]\nmessages_each = 50\nmax = 3\n'
    assert parse(text) == (Service("user.lifecycle", command=("python", "s.py"), messages_each=50, max=3),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write a section"),
        ("[services.a]\nmessages_each = 1", "command"),
        ('[services.a]\ncommand = ["x"]', "threshold"),
        ('[services.a]\ncommand = ["x"]\nmessages_each = 1\nmin = 5\nmax = 2', "min"),
        ('[services.a]\ncommand = "x"\nmessages_each = 1', "list of strings"),
        ('[services.a]\ncommand = ["x"]\nmessages_each = 1.5', "whole number"),
        ('[services.a]\ncommand = ["x"]\nmessages_each = 1\nmode = "maybe"', "mode"),
        ('[services.a]\ncommand = ["x"]\nmessages_each = 1\ncolour = 1', "no such key"),
        ('[services.a]\ncommand = ["x"]\nmessages_each = 1\ndown_s = -1', "negative"),
        ("[services", "scaling:"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


def wanted(scaler: Scaler, at_s: float, messages: int, instances: int, **more: float) -> int | None:
    decision = scaler.decide(Load(messages, instances, **more), at_s)
    return None if decision is None else decision.instances


def test_a_load_step_adds_and_quiet_removes_one_at_a_time() -> None:
    scaler = Scaler(SERVICE)
    assert wanted(scaler, 0, 0, 1) is None
    assert wanted(scaler, 1, 150, 1) == 2
    assert wanted(scaler, 2, 900, 2) is None  # the last step has not had its time
    assert wanted(scaler, 7, 900, 2) == 4
    assert wanted(scaler, 13, 900, 4) == 8
    assert wanted(scaler, 20, 9_000, 8) is None
    assert wanted(scaler, 30, 0, 8) is None
    assert wanted(scaler, 85, 0, 8) == 7
    assert wanted(scaler, 100, 0, 7) is None
    assert wanted(scaler, 145, 0, 7) == 6


def test_what_is_left_must_bear_the_load_before_one_goes() -> None:
    scaler = Scaler(SERVICE)
    assert wanted(scaler, 0, 60, 2) is None  # 60 for one would be above 30 of 100
    assert wanted(scaler, 100, 60, 2) is None
    assert wanted(scaler, 101, 10, 2) is None
    assert wanted(scaler, 161, 10, 2) == 1
    assert wanted(scaler, 300, 0, 1) is None


def test_time_in_queue_and_drain_time_count_too() -> None:
    by_wait = Scaler(Service("s", command=("x",), wait_ms_max=200))
    assert wanted(by_wait, 0, 5, 1, wait_ms=150) is None
    assert wanted(by_wait, 1, 5, 1, wait_ms=250) == 2
    by_drain = Scaler(Service("s", command=("x",), drain_s_max=10))
    assert wanted(by_drain, 0, 90, 1, arrivals_per_s=5, departures_per_s=15) is None
    assert wanted(by_drain, 1, 110, 1, arrivals_per_s=5, departures_per_s=15) == 2
    assert math.isinf(Load(1, 1, arrivals_per_s=5, departures_per_s=5).drain_s)
    growing = Scaler(Service("s", command=("x",), drain_s_max=10))
    assert wanted(growing, 0, 90, 1, arrivals_per_s=5, departures_per_s=5) == 2
    assert wanted(growing, 9, 2, 1, arrivals_per_s=5, departures_per_s=5) is None


def test_instances_that_died_are_replaced_at_once() -> None:
    scaler = Scaler(Service("s", command=("x",), min=2, messages_each=100))
    decision = scaler.decide(Load(0, 1), 0)
    assert decision is not None
    assert (decision.instances, decision.reason) == (2, "1 of at least 2 instances are there")


def test_what_waits_never_waits_for_nobody() -> None:
    for threshold in ({"messages_each": 100}, {"wait_ms_max": 60_000}, {"drain_s_max": 60.0}):
        scaler = Scaler(Service("s", command=("x",), min=0, **threshold))
        assert wanted(scaler, 0, 0, 0) is None
        decision = scaler.decide(Load(1, 0), 1)
        assert decision is not None
        assert (decision.instances, decision.reason) == (1, "1 messages wait for nobody")
        assert wanted(scaler, 2, 1, 1) is None
        assert wanted(scaler, 99, 1, 1) is None, "it is still at work"
        assert wanted(scaler, 100, 0, 1) == 0
        scaler.request(Request(instances=0, hold_s=10), 101, 0)
        assert wanted(scaler, 102, 1, 0) == 1, "a request for none takes nobody's work away"


def test_a_request_is_obeyed_within_bounds_until_it_expires() -> None:
    scaler = Scaler(SERVICE)
    scaler.request(Request(instances=50, hold_s=100, reason="forecast", source="capacity"), 0, 1)
    decision = scaler.decide(Load(0, 1), 1)
    assert decision is not None
    assert (decision.instances, decision.reason) == (8, "capacity: forecast")
    assert wanted(scaler, 90, 0, 8) is None
    assert wanted(scaler, 170, 0, 8) == 7
    scaler.request(Request(add=-3, hold_s=10), 200, 7)
    assert wanted(scaler, 201, 0, 7) == 4


def test_an_alert_is_told_once_and_changes_nothing() -> None:
    scaler = Scaler(Service("s", command=("x",), messages_each=100, mode="alert"))
    decision = scaler.decide(Load(150, 1), 0)
    assert decision is not None
    assert (decision.alert, decision.instances) == (True, 2)
    assert scaler.decide(Load(160, 1), 10) is None
    assert scaler.decide(Load(0, 1), 20) is None
    assert scaler.decide(Load(150, 1), 30) is not None


async def test_local_processes_start_and_end() -> None:
    program = "import signal,time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); time.sleep(60)"
    service = Service("s", command=(sys.executable, "-c", program), messages_each=1)
    driver = LocalProcesses("amqp://127.0.0.1")
    await driver.bring_to(service, 3)
    assert await driver.count(service) == 3
    assert len(set(driver.names(service))) == 3
    await driver.bring_to(service, 1)
    assert await driver.count(service) == 1
    await driver.close()
    assert await driver.count(service) == 0


async def test_an_instance_that_does_not_listen_is_ended() -> None:
    program = "import signal,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    service = Service("s", command=(sys.executable, "-c", program), messages_each=1, stop_s=0.2)
    driver = LocalProcesses("amqp://127.0.0.1")
    await driver.bring_to(service, 1)
    await driver.bring_to(service, 0)
    await driver.close()
    assert await driver.count(service) == 0


async def test_the_end_of_the_driver_gives_instances_the_time_of_their_service(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = (
        "import pathlib,signal,sys,time; p = pathlib.Path(sys.argv[1])\n"
        "def end(*_): time.sleep(float(sys.argv[2])); p.write_text('done'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); p.write_text('ready'); time.sleep(60)"
    )
    for work_s, stop_s, left in (("0.1", 30.0, "done"), ("30", 0.1, "ready")):
        said.unlink(missing_ok=True)
        words = (sys.executable, "-c", program, str(said), work_s)
        service = Service("s", command=words, messages_each=1, stop_s=stop_s)
        driver = LocalProcesses("amqp://127.0.0.1")
        await driver.bring_to(service, 1)
        while not said.exists() or not said.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with asyncio.timeout(4):
            await driver.close()
        assert said.read_text() == left


async def test_a_program_that_is_not_there_is_told() -> None:
    driver = LocalProcesses("amqp://127.0.0.1")
    with pytest.raises(Unavailable, match="cannot start s"):
        await driver.bring_to(Service("s", command=("/nonexistent/program",), messages_each=1), 1)


async def test_a_platforms_tool_is_told_the_count(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (
        sys.executable,
        "-c",
        "import sys; open(sys.argv[1],'w').write(sys.argv[2])",
        str(out),
        "{service}={count}",
    )
    service = Service("s", scale_command=words, messages_each=1)
    driver = Commands("amqp://127.0.0.1")
    assert await driver.count(service) == 1
    await driver.bring_to(service, 3)
    assert (out.read_text(), await driver.count(service)) == ("s=3", 3)
    broken = Service("s", scale_command=(sys.executable, "-c", "raise SystemExit('no quota')"), messages_each=1)
    with pytest.raises(Unavailable, match="no quota"):
        await driver.bring_to(broken, 4)
