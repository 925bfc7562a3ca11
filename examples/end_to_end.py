"""A producer that hears from its consumer, not from the node in between.

Run it: it starts a node in this process, and sends two orders to a queue with end-to-end acknowledgement.
"""

import asyncio

import weft
from weft.model.errors import Undelivered


async def work(fabric: weft.Fabric) -> None:
    async for message in fabric.receive("orders", accept="explicit"):
        if message.body["count"] > 0:
            message.accept()
        else:
            message.reject("nothing to deliver")


async def main() -> None:
    async with weft.Node(name="example") as node, weft.connect("weft+memory:example") as fabric:
        node.declare_queue("orders", arguments={"x-ack": "end-to-end"})
        worker = asyncio.create_task(work(fabric))
        await fabric.send("orders", {"count": 3})
        print("the first order was taken by its consumer")
        try:
            await fabric.send("orders", {"count": 0})
        except Undelivered as refusal:
            print(f"the second order: {refusal}")
        worker.cancel()


asyncio.run(main())
