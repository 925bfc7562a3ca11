"""Filtering: a headers exchange lets through only what matches, by properties that the sender set."""

import asyncio

import weft


async def main() -> None:
    """Only urgent bills come through."""
    async with weft.Node() as node:
        node.declare_exchange("mail", "headers")
        node.declare_queue("urgent-bills")
        node.bind("mail", "urgent-bills", arguments={"x-match": "all", "urgent": True, "kind": "bill"})
        for kind, urgent in (("bill", True), ("bill", False), ("letter", True)):
            taken = await node.send("mail/", kind.encode(), headers={"kind": kind, "urgent": urgent})
            print(f"{kind}, {'urgent' if urgent else 'not urgent'}: {'kept' if taken else 'filtered out'}")


asyncio.run(main())
