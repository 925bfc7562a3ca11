"""A hundred nodes, and nobody's hand: they find each other, names are resolved, rights hold, an alert comes and goes.

One hub has an address; ninety-nine nodes know it and nothing else. All are in this process to be seen at once; as
processes of their own they are told as little (WEFT_GATEWAY, deploy/).
"""

import asyncio
import contextlib
import logging

import weft
from weft.cli.fabric_source import FabricSource
from weft.client.management import Management
from weft.config import parse
from weft.rules import parse as parse_rules
from weft.rules.run import Runner

NODES = 100
HUB = parse("""
[[users]]
name = "auditor"
password = "s3cret"

[[permissions]]
user = "auditor"
vhost = "/"
configure = "^$"
write = "^$"
read = "^audit\\\\."
""")
REQUESTS, REPLIES = "service_gateway.direct", "amq.topic"
ROUTES = ((REQUESTS, "push"), (REPLIES, "push"), (REPLIES, "pull"))
"""Requests go up to the hub; replies go up, and come down to whoever asked."""

RULES = parse_rules("""
[rules.backlog]
attribute = "messages"
above = 50
clear = 10
action = "log"
""")


async def join(nodes: contextlib.AsyncExitStack, name: str, hub: str) -> None:
    """A node that knows the hub, and what is to be carried to and fro."""
    node = await nodes.enter_async_context(weft.Node(name=name, listen="127.0.0.1:0"))
    node.declare_exchange(REQUESTS, "direct")
    node.add_link("gateway", hub, role="gateway")
    for exchange, direction in ROUTES:
        node.add_route("gateway", "dynamic", direction=direction, exchange=exchange)


async def members(count: int) -> None:
    """Wait until the hub's directory knows so many nodes."""
    async with weft.connect("weft+memory:hub") as fabric:
        management = Management(fabric)
        while True:
            rows = await management.query("directory", columns=("name",))
            if sum(row["name"].startswith("/members/") for row in rows) >= count:
                return
            await asyncio.sleep(0.05)


async def resolve_and_ask() -> str:
    """A service at one node, found and asked from another; neither knows where the other is."""
    async with weft.connect("weft+memory:edge-7") as serving, weft.connect("weft+memory:edge-93") as asking:

        @serving.service("service://rates")
        async def rates(message):
            return f"{message.body}: 1.08"

        await rates.start()
        management, found = Management(asking), []
        while not found:
            await asyncio.sleep(0.05)
            found = [row for row in await management.query("directory") if row["name"].startswith("/services/rates/")]
        while True:
            with contextlib.suppress(weft.WeftError):  # the way there and back may still be in the making
                reply = await asking.request("service://rates", "EUR/USD", timeout_s=1)
                return f"edge-93 resolves rates to {found[0]['node']}, which answers {reply.body}"


async def refuse(hub: weft.Node) -> str:
    """Someone who may read audits, and nothing else, tries to send."""
    async with weft.connect(f"amqp://auditor:s3cret@127.0.0.1:{hub.ports[0]}") as fabric:
        try:
            await fabric.send("payments", b"to me", timeout_s=10)
        except weft.WeftError as error:
            return f"the auditor may not send: {error}"
    raise SystemExit("the auditor could send")


async def alert(hub: weft.Node) -> None:
    """A queue grows, an alert is told; it is worked off, and the alert is over."""
    async with weft.connect("weft+memory:hub") as fabric:
        runner = Runner(RULES, FabricSource(fabric, hub.name))
        await fabric.send_many("backlog", [b"work"] * 60)
        await runner.look()
        await runner.settle()
        received = 0
        async for _ in fabric.receive("backlog"):
            received += 1
            if received == 60:
                break
        await runner.look()
        await runner.settle()


async def main() -> None:
    logging.basicConfig(level=logging.ERROR)  # a hundred nodes would each tell what they see
    async with contextlib.AsyncExitStack() as nodes:
        hub = await nodes.enter_async_context(weft.Node(name="hub", listen="127.0.0.1:0", configuration=HUB))
        hub.declare_exchange(REQUESTS, "direct")
        for number in range(1, NODES):
            await join(nodes, f"edge-{number}", f"amqp://127.0.0.1:{hub.ports[0]}")
        await members(NODES)
        print(f"{NODES} nodes know each other")
        print(await resolve_and_ask())
        print(await refuse(hub))
        await alert(hub)


asyncio.run(main())
