"""Store and forward: sales go on without a network, and arrive once it is back."""

import asyncio
import tempfile

import weft


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Nothing listens at port 1: the till is alone.
        async with weft.connect("amqp://127.0.0.1:1", spool=folder, timeout_s=0.1) as till:
            for number in range(3):
                await till.send("sales", {"sale": number})
            print("kept:", till.waiting)
        # Later, another process with the same folder finds a node.
        async with (
            weft.Node(name="shop"),
            weft.connect("weft+memory:shop", spool=folder) as till,
            till.receive("sales", timeout_s=30) as sales,
        ):
            print("sold:", [(await anext(sales)).body["sale"] for _ in range(3)])


asyncio.run(main())
