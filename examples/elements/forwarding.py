"""Forwarding: exchanges bound to exchanges make a path, so that one place decides and others follow."""

import asyncio

import weft


async def main() -> None:
    """From the front desk by way of a department to a person."""
    async with weft.Node() as node:
        node.declare_exchange("front-desk", "topic")
        node.declare_exchange("sales", "direct")
        node.declare_queue("ann")
        node.bind("front-desk", "sales", "sales.*", kind="exchange")
        node.bind("sales", "ann", "sales.new")
        await node.send("front-desk/sales.new", b"a customer")
        async with node.receive("ann") as ann:
            message = await anext(ann)
            print(f"ann got {message.body.decode()!r}, sent to {message.exchange}")
            message.accept()


asyncio.run(main())
