"""A digest: messages in lists, by count or by time, as a mailing list sends them."""

import asyncio

import weft


async def main() -> None:
    """Five notes, in lists of at most three."""
    async with weft.Node(name="example"), weft.connect("weft+memory:example") as fabric:
        notes = await fabric.subscribe("notes.#").ready()
        for number in range(5):
            await fabric.publish("notes.today", f"note {number}")
        digests = notes.digest(count=3, interval_s=0.2)
        for _ in range(2):
            print([message.body for message in await anext(digests)])


asyncio.run(main())
