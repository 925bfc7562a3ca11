"""Buffering: a queue keeps what nobody reads yet, in order, and may bound how much."""

import asyncio

import weft


async def main() -> None:
    """Five messages into room for three."""
    async with weft.Node() as node:
        node.declare_queue("recent", arguments={"x-max-length": 3})
        for number in range(5):
            await node.send("recent", f"reading {number}")
        print("nobody was here yet; later:")
        async with node.receive("recent") as receiver:
            for _ in range(3):
                message = await anext(receiver)
                print(f"  {message.body.decode()}")
                message.accept()


asyncio.run(main())
