"""The library as a package: examples in docstrings, URLs."""

from __future__ import annotations

import asyncio
import doctest
import sys

import pytest

import weft
from weft.client import codecs
from weft.client import url as url_module
from weft.client.tickets import within
from weft.client.url import Target, arrange, targets


def test_examples_in_docstrings() -> None:
    for module in (codecs, url_module):
        found = doctest.testmod(module)
        assert found.attempted >= 1
        assert found.failed == 0


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("amqp://host", Target("tcp", "host", 5672)),
        ("amqps://host", Target("tls", "host", 5671)),
        ("amqp://u%40x:p%2Fw@host:1/v%2Fh", Target("tcp", "host", 1, "u@x", "p/w", "v/h")),
        ("amqp://[::1]:7", Target("tcp", "::1", 7)),
        ("weft+memory:here", Target("memory", "here")),
        ("amqp+srv://example.com", Target("srv", "example.com", 5672)),
        ("amqp+srv://example.com?resolver=[::1]:9", Target("srv", "example.com", 5672, resolver="[::1]:9")),
    ],
)
def test_urls(url: str, target: Target) -> None:
    assert targets(url) == (target,)


def test_several_urls_and_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [target.host for target in targets("amqp://a, amqp://b")] == ["a", "b"]
    assert [target.host for target in targets(["amqp://a", "amqp://b"])] == ["a", "b"]
    monkeypatch.delenv("WEFT_URL", raising=False)
    assert str(targets(None)[0]) == "amqp://localhost:5672"
    monkeypatch.setenv("WEFT_URL", "amqp://elsewhere:9")
    assert str(targets(None)[0]) == "amqp://elsewhere:9"


def test_policies_spread_clients_over_nodes() -> None:
    found = targets("amqp://a,amqp://b,amqp://c")
    firsts = [arrange(found, "round-robin")[0].host for _ in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "c", "c"]
    shuffled = {arrange(found, "random")[0].host for _ in range(100)}
    assert shuffled == {"a", "b", "c"}
    assert arrange(found, "failover") == found
    with pytest.raises(weft.ConfigError, match="policy"):
        weft.connect("amqp://a", policy="nearest")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["", ",", "http://x", "amqp://", "amqp://host:port", "amqp://host:99999", "host"])
def test_wrong_urls_say_what_is_wrong(url: str) -> None:
    with pytest.raises(weft.ConfigError):
        targets(url if url else [])


async def test_srv_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dns", None)
    with pytest.raises(weft.ConfigError, match=r"weft\[srv\]"):
        await weft.connect("amqp+srv://example.com", timeout_s=2).open()


async def test_within_is_a_clock_only_for_what_waits() -> None:
    asked: list[str] = []

    async def at_once(value: int) -> int:
        return value

    async def later(value: int) -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        return await asyncio.sleep(0.001, value)

    async def fails(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise KeyError("no")

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asked.append("to stop")

    assert await within(0.0, at_once, 1) == 1
    assert await within(30, later, 2) == 2
    assert await within(None, later, 3) == 3
    for wait in (False, True):
        with pytest.raises(KeyError):
            await within(30, fails, wait)
    with pytest.raises(TimeoutError):
        await within(0.01, forever)
    task = asyncio.create_task(within(30, forever))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked == ["to stop", "to stop"]
