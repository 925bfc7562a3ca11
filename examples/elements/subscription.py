"""Subscription: whoever is there gets a copy of each message, and leaves nothing behind."""

import asyncio

import weft


async def main() -> None:
    """Two listeners, then one, then none."""
    async with weft.Node() as node:
        node.declare_exchange("radio", "fanout")
        async with node.receive("radio/") as first:
            async with node.receive("radio/") as second:
                print(f"two listen: {await node.send('radio/', b'news')} copies")
                for receiver in (first, second):
                    (await anext(receiver)).accept()
            await asyncio.sleep(0)
            print(f"one listens: {await node.send('radio/', b'music')} copy")
        await asyncio.sleep(0)
        print(f"none listens: {await node.send('radio/', b'silence')} copies")


asyncio.run(main())
