"""A message to an address, and out of it again."""

import asyncio

import weft


async def main() -> None:
    """The node is in this process; `weft.connect()` alone would use the one on this machine."""
    async with weft.Node(name="example"), weft.connect("weft+memory:example") as fabric:
        await fabric.send("orders", {"id": 7, "amount": 12.5})
        async for message in fabric.receive("orders", accept="explicit"):
            print("order", message.body["id"])
            message.accept()
            break


asyncio.run(main())
