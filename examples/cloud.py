"""A cloud's controller on the fabric: it answers a scaler, which asks for instances by messages.

Run it: `python examples/cloud.py`. It starts a node, serves the address `cloud`, and lets a scaler follow a load step.
"""

import asyncio

import weft
from weft.cli.fabric_source import FabricSource
from weft.scaling import parse
from weft.scaling.run import Runner

SERVICES = """
[services.work]
messages_each = 10
max = 4
up_s = 0
[services.work.cloud]
address = "cloud"
"""


async def main() -> None:
    machines: dict[str, int] = {}
    async with weft.Node(listen="127.0.0.1:0") as node, weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:

        @fabric.service("cloud")
        async def cloud(request: weft.client.Message) -> dict[str, int]:
            order = request.body
            if order["operation"] == "scale":
                machines[order["service"]] = order["instances"]  # a real one would start and stop machines here
            return {"instances": machines.get(order["service"], 0)}

        await cloud.start()
        node.declare_queue("work")
        scaler = Runner(parse(SERVICES), FabricSource(fabric, node.name), "")
        await scaler.look()  # the least: one
        await fabric.send_many("work", [b"to be done"] * 25)
        await scaler.look()  # 25 messages are too many for one
        print(machines)


asyncio.run(main())
