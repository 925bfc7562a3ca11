"""The talk's monitor: a broker's objects go to rules of a file; `transaction_test` alerts once, others are ignored."""

import asyncio
import logging
import sys

import weft
from weft.cli.fabric_source import FabricSource
from weft.rules import parse
from weft.rules.run import Runner

RULES = parse("""
[rules.transaction_test]
attribute = "messages"
above = 100
clear = 50
severity = "critical"
action = "log"
""")


async def main() -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("weft.rules").setLevel(logging.INFO)
    async with (
        weft.Node(name="broker", listen="127.0.0.1:0") as node,
        weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric,
    ):
        runner = Runner(RULES, FabricSource(fabric, node.name))
        await fabric.send("something_else", b"not watched")
        for count in (1, 60, 60, 60):
            await fabric.send_many("transaction_test", [b"a payment"] * count)
            await runner.look()
            await runner.settle()


asyncio.run(main())
