"""A pipeline: steps with queues between them, as many workers each as it takes, wherever they run."""

import asyncio

import weft
from weft.client import Message


async def main() -> None:
    """Three words through two steps."""
    async with weft.Node(name="example"), weft.connect("weft+memory:example") as fabric:
        pipeline = fabric.pipeline("words", output="words.done")

        @pipeline.step("reverse", workers=2)
        async def reverse(message: Message) -> str:
            return str(message.body)[::-1]

        @pipeline.step("upper")
        async def upper(message: Message) -> str:
            return str(message.body).upper()

        await pipeline.start()
        for word in ("one", "two", "three"):
            await pipeline.send(word)
        async with fabric.receive("words.done") as done:
            print(sorted([(await anext(done)).body for _ in range(3)]))
        await pipeline.stop()


asyncio.run(main())
