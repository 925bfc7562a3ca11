"""Publish under a topic, receive by a pattern."""

import asyncio

import weft


async def main() -> None:
    """One subscriber to everything about gold."""
    async with weft.Node(name="example"), weft.connect("weft+memory:example") as fabric:
        prices = await fabric.subscribe("prices.gold.#").ready()
        await fabric.publish("prices.gold.london", 2_650)
        await fabric.publish("prices.silver.london", 31)
        message = await anext(prices)
        print(message.subject, message.body)


asyncio.run(main())
