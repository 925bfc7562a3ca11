"""Topics: keys are words with dots; `*` stands for one word, `#` for any number."""

import asyncio

import weft

KEYS = ("room.kitchen.light", "room.kitchen.heat", "room.hall.light", "garden.light")


async def main() -> None:
    """Three patterns over four keys."""
    async with weft.Node() as node:
        node.declare_exchange("house", "topic")
        for pattern in ("room.*.light", "room.#", "#.light"):
            node.declare_queue(pattern)
            node.bind("house", pattern, pattern)
        for key in KEYS:
            taken = await node.send(f"house/{key}", b"on")
            print(f"{key}: {taken} of 3 patterns match")


asyncio.run(main())
