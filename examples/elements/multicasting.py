"""Multicasting: a fanout exchange gives every queue its own copy; the body is stored once."""

import asyncio

import weft


async def main() -> None:
    """One message, five readers."""
    async with weft.Node() as node:
        node.declare_exchange("news", "fanout")
        for number in range(5):
            node.declare_queue(f"reader-{number}")
            node.bind("news", f"reader-{number}")
        taken = await node.send("news/", bytes(1_000_000))
        print(f"{taken} queues have it; memory for messages: {node.snapshot()['stats']['memory_bytes']:,} bytes")


asyncio.run(main())
