"""A service and who asks it: neither knows where the other is."""

import asyncio

import weft
from weft.client import Message


async def main() -> None:
    """The service needs its name and the URL of a node, nothing else."""
    async with weft.Node(name="example"), weft.connect("weft+memory:example") as fabric:

        @fabric.service("greet", concurrency=10)
        async def greet(request: Message) -> str:
            return f"Hello, {request.body}!"

        await greet.start()
        reply = await fabric.request("greet", "Ada", timeout_s=5)
        print(reply.body)


asyncio.run(main())
