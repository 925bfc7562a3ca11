"""Relaying: an exchange hands a message on to a queue, and the sender knows neither the queue nor its reader."""

import asyncio

import weft


async def main() -> None:
    """One exchange, one queue, one key."""
    async with weft.Node() as node:
        node.declare_exchange("orders", "direct")
        node.declare_queue("kitchen")
        node.bind("orders", "kitchen", "food")
        await node.send("orders/food", b"soup")
        async with node.receive("kitchen") as kitchen:
            message = await anext(kitchen)
            print(f"sent to {message.exchange}/{message.routing_key}, arrived in kitchen: {message.body.decode()}")
            message.accept()


asyncio.run(main())
