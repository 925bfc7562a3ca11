"""Streaming: a reader that keeps up and a writer that does not run ahead; memory stays within its bound."""

import asyncio

import weft

CHUNK = bytes(64 * 1024)
CHUNKS = 2_000


async def write(node: weft.Node) -> None:
    """Sends as fast as it may."""
    for _ in range(CHUNKS):
        await node.send("stream", CHUNK)


async def main() -> None:
    """125 MiB through a node that may hold 4."""
    async with weft.Node(limits=weft.Limits(memory_bytes_max=4 * 1024 * 1024)) as node:
        writing = asyncio.create_task(write(node))
        received = highest = 0
        async with node.receive("stream", credit=16) as receiver:
            async for message in receiver:
                received += len(message.body)
                message.accept()
                highest = max(highest, node.snapshot()["stats"]["memory_bytes"])
                if received == len(CHUNK) * CHUNKS:
                    break
        await writing
        print(f"{received / 1024 / 1024:.0f} MiB passed; at most {highest / 1024 / 1024:.1f} MiB were held")


asyncio.run(main())
