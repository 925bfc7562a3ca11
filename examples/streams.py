"""A stream: an exchange is tapped into it, and two readers read what went by, each from its own place."""

import asyncio
import tempfile

import weft

STREAM = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1_000_000_000}


async def read(url: str, name: str, offset: int | str, count: int) -> None:
    """A reader by itself: others see the same messages."""
    async with weft.connect(url) as fabric, fabric.stream("/queues/history", offset=offset, timeout_s=10) as messages:
        for _ in range(count):
            message = await anext(messages)
            print(f"{name} read offset {message.offset}: {bytes(message.body).decode()}")


async def main() -> None:
    """Declare, tap, send, read."""
    with tempfile.TemporaryDirectory() as folder:
        async with weft.Node(listen="127.0.0.1:0", data_dir=folder) as node:
            url = f"amqp://127.0.0.1:{node.ports[0]}"
            node.declare_queue("history", arguments=STREAM)
            node.declare_exchange("orders", "topic")
            node.tap("orders", "history")
            for order in ("one coffee", "two teas", "three cakes"):
                await node.send("orders/order.new", order)
            print("nobody was bound to the exchange, and yet:")
            await read(url, "the auditor", "first", 3)
            await read(url, "the newcomer", 2, 1)
            await read(url, "the auditor", "first", 3)


asyncio.run(main())
