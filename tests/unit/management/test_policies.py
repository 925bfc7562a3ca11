"""Policies against a live node: over HTTP, AMQP and the command line, and what they do to messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import aiohttp
import pytest
import pytest_asyncio

import weft
from weft.cli import main
from weft.config import parse

from .conftest import Browser, Console

CONFIG = """
[http]
address = "127.0.0.1:0"
[[users]]
name = "joe"
password = "joe"
tags = ["management"]
[[users]]
name = "pam"
password = "pam"
tags = ["policymaker"]
[[permissions]]
user = "joe"
[[permissions]]
user = "pam"
[[policies]]
name = "configured"
pattern = "^conf"
priority = 2
apply_to = "queues"
definition = {max-length = 3, overflow = "reject-publish"}
"""
POLICIES = "/api/policies/%2F/"
OPERATOR = "/api/operator-policies/%2F/"


@pytest_asyncio.fixture
async def served() -> AsyncIterator[weft.Node]:
    async with weft.Node(name="here", listen="127.0.0.1:0", configuration=parse(CONFIG)) as node:
        yield node


@pytest_asyncio.fixture
async def browser(served: weft.Node) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession() as session:
        yield Browser(session, served.http_port)


def ready(node: weft.Node, name: str) -> int:
    return next(int(row["ready"]) for row in node.snapshot()["queues"] if row["name"] == name)


async def test_a_policy_trims_a_queue_that_is_there_and_lets_it_grow_again(served: weft.Node, browser: Browser) -> None:
    served.declare_queue("q")
    for number in range(10):
        await served.send("q", f"{number}")
    body = {"pattern": "^q$", "definition": {"max-length": 4}, "apply-to": "queues", "priority": 1}
    assert (await browser.ask("PUT", POLICIES + "short", body))[0] == 201
    assert ready(served, "q") == 4
    async with served.receive("q") as receiver:
        message = await anext(receiver)
        assert message.body == b"6"
        message.release()
    row = await browser.get("/api/queues/%2F/q")
    assert (row["policy"], row["operator_policy"]) == ("short", None)
    assert row["effective_policy_definition"] == {"max-length": 4}
    assert await browser.get(POLICIES + "short") == {"vhost": "/", "name": "short", **body}
    assert (await browser.ask("PUT", POLICIES + "short", body))[0] == 204
    assert (await browser.ask("DELETE", POLICIES + "short"))[0] == 204
    assert (await browser.ask("GET", POLICIES + "short"))[0] == 404
    for number in range(3):
        await served.send("q", f"more {number}")
    assert ready(served, "q") == 7
    row = await browser.get("/api/queues/%2F/q")
    assert (row["policy"], row["effective_policy_definition"]) == (None, {})


async def test_dead_letters_by_policy(served: weft.Node, browser: Browser) -> None:
    served.declare_queue("work")
    served.declare_queue("dead")
    keys = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "delivery-limit": 5}
    assert (await browser.ask("PUT", POLICIES + "dlx", {"pattern": "work", "definition": keys}))[0] == 201
    await served.send("work", b"bad")
    async with served.receive("work") as receiver:
        (await anext(receiver)).reject()
    async with asyncio.timeout(30), served.receive("dead") as receiver:
        message = await anext(receiver)
        assert message.body == b"bad"
        message.accept()


async def test_a_full_queue_by_policy_refuses_and_an_alternate_exchange_catches(
    served: weft.Node, browser: Browser
) -> None:
    served.declare_queue("conf")
    served.declare_queue("lost")
    served.declare_exchange("in", "direct")
    served.declare_exchange("rest", "fanout")
    served.bind("rest", "lost")
    alternate = {"pattern": "^in$", "apply-to": "exchanges", "definition": {"alternate-exchange": "rest"}}
    assert (await browser.ask("PUT", POLICIES + "ae", alternate))[0] == 201
    assert (await browser.get("/api/exchanges/%2F/in"))["policy"] == "ae"
    connection = await aio_pika.connect(f"amqp://127.0.0.1:{served.ports[0]}")
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        for _ in range(3):
            await channel.default_exchange.publish(aio_pika.Message(b""), "conf")
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b""), "conf")
        await (await channel.get_exchange("in")).publish(aio_pika.Message(b"astray"), "nowhere")
    assert (ready(served, "conf"), ready(served, "lost")) == (3, 1)


async def test_an_operator_policy_holds_against_arguments_and_policies(served: weft.Node, browser: Browser) -> None:
    served.declare_queue("conf", arguments={"x-max-length": 100})
    assert (await browser.ask("PUT", OPERATOR + "op", {"pattern": "", "definition": {"max-length": 1}}))[0] == 201
    await served.send("conf", b"")
    await served.send("conf", b"")
    assert ready(served, "conf") == 1
    row = await browser.get("/api/queues/%2F/conf")
    assert (row["policy"], row["operator_policy"]) == ("configured", "op")
    assert row["effective_policy_definition"] == {"max-length": 1, "overflow": "reject-publish"}
    assert [row["name"] for row in await browser.get("/api/operator-policies")] == ["op"]
    assert [row["name"] for row in await browser.get("/api/policies")] == ["configured"]


async def test_who_may_set_them(browser: Browser) -> None:
    body = {"pattern": "x", "definition": {"max-length": 1}}
    assert (await browser.ask("PUT", POLICIES + "p", body, user="joe"))[0] == 403
    assert (await browser.ask("PUT", POLICIES + "p", body, user="pam"))[0] == 201
    assert (await browser.ask("PUT", OPERATOR + "p", body, user="pam"))[0] == 403
    assert (await browser.ask("GET", POLICIES + "p", user="joe"))[0] == 200
    assert (await browser.ask("DELETE", POLICIES + "p", user="joe"))[0] == 403
    assert (await browser.ask("DELETE", POLICIES + "p", user="pam"))[0] == 204
    assert (await browser.ask("DELETE", POLICIES + "p", user="pam"))[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"pattern": "x"},
        {"pattern": "(", "definition": {"max-length": 1}},
        {"pattern": "(a+)+$", "definition": {"max-length": 1}},
        {"pattern": "x", "definition": {}},
        {"pattern": "x", "definition": {"wings": 2}},
        {"pattern": "x", "definition": {"max-length": "9"}},
        {"pattern": "x", "definition": {"max-length": 1}, "priority": "high"},
        {"pattern": "x", "definition": {"max-length": 1}, "apply-to": "users"},
        {"pattern": 5, "definition": {"max-length": 1}},
    ],
)
async def test_nonsense_is_told_as_such(browser: Browser, body: dict[str, Any]) -> None:
    status, told = await browser.ask("PUT", POLICIES + "p", body)
    assert (status, told["error"]) == (400, "bad_request")
    assert (await browser.ask("GET", POLICIES + "p"))[0] == 404


async def test_they_are_exported_and_imported(served: weft.Node, browser: Browser) -> None:
    assert (await browser.ask("PUT", OPERATOR + "op", {"pattern": "", "definition": {"max-length": 1}}))[0] == 201
    document = await browser.get("/api/definitions")
    (policy,) = document["policies"]
    assert (policy["name"], policy["apply-to"], policy["priority"]) == ("configured", "queues", 2)
    (operator,) = document["parameters"]
    assert (operator["component"], operator["value"]["definition"]) == ("operator_policy", {"max-length": 1})
    assert (await browser.ask("DELETE", POLICIES + "configured"))[0] == 204
    assert (await browser.ask("DELETE", OPERATOR + "op"))[0] == 204
    assert (await browser.ask("POST", "/api/definitions", document))[0] == 204
    assert await browser.get("/api/definitions") == document
    alone = await browser.get("/api/definitions/%2F")
    assert "vhost" not in alone["policies"][0]
    assert (await browser.ask("POST", "/api/definitions/%2F", alone))[0] == 204
    assert (await browser.get("/api/policies"))[0]["definition"] == policy["definition"]


async def test_events_tell_of_them(served: weft.Node, browser: Browser) -> None:
    async with asyncio.timeout(30), served.receive("weft.events/policy.#") as events:
        body = {"pattern": "x", "definition": {"max-length": 1}}
        await browser.ask("PUT", POLICIES + "p", body)
        await browser.ask("PUT", POLICIES + "p", body)
        await browser.ask("DELETE", POLICIES + "p")
        told = [json.loads((await anext(events)).body) for _ in range(3)]
    assert [event["kind"] for event in told] == ["created", "changed", "deleted"]
    assert (told[0]["object"], told[0]["values"]["definition"]) == ("p", {"max-length": 1})


async def test_over_amqp(node: weft.Node, console: Console) -> None:
    node.declare_queue("q")
    status, row = await console.ask(
        "CREATE", {"pattern": "q", "definition": {"max-length": 1}}, type="policy", name="p"
    )
    assert (status, row["apply_to"], row["priority"]) == (201, "all", 0)
    _, row = await console.ask("READ", type="queue", name="q")
    assert (row["policy"], row["effective_policy_definition"]) == ("p", {"max-length": 1})
    status, row = await console.ask("UPDATE", {"priority": 7}, type="policy", name="p")
    assert (status, row["priority"], row["definition"]) == (200, 7, {"max-length": 1})
    assert [row["name"] for row in await console.rows("policy")] == ["p"]
    assert (await console.ask("DELETE", type="policy", name="p"))[0] == 204
    assert (await console.ask("DELETE", type="policy", name="p"))[0] == 404


async def test_from_the_command_line(
    node: weft.Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_URL", f"amqp://127.0.0.1:{node.ports[0]}")

    async def run(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ("policy", *words))
        told = capsys.readouterr()
        return code, told.out + told.err

    assert (await run("set", "short", "^q", "max-length=2", "overflow=reject-publish", "--apply-to", "queues"))[0] == 0
    assert (await run("set", "cap", "", "max-length=1", "--operator"))[0] == 0
    code, text = await run("list")
    assert (code, text.splitlines()[1].split()[:4]) == (0, ["short", "^q", "queues", "0"])
    assert "cap" in (await run("list", "--operator"))[1]
    assert (await run("set", "wrong", "^q", "wings=2"))[0] == 1
    assert (await run("clear", "short"))[0] == 0
    assert (await run("clear", "short"))[0] == 1


async def test_a_new_configuration_takes_its_policies_away(served: weft.Node, browser: Browser) -> None:
    served.declare_queue("conf")
    assert (await browser.get("/api/queues/%2F/conf"))["policy"] == "configured"
    await served.reload(parse(CONFIG.replace('name = "configured"', 'name = "other"')))
    assert (await browser.get("/api/queues/%2F/conf"))["policy"] == "other"
    with pytest.raises(weft.model.errors.Refused):
        await served.reload(parse(CONFIG.replace("max-length = 3", "max-length = -3")))
    await served.reload(parse(CONFIG.split("[[policies]]", maxsplit=1)[0]))
    assert (await browser.get("/api/queues/%2F/conf"))["policy"] is None
