"""A node inside this process: messages from one coroutine to another, without a socket.

Shows a topic exchange, two queues and what becomes of a message that is rejected.
"""

import asyncio

import weft


async def audit(node: weft.Node) -> None:
    """Takes three orders and is content with all but one."""
    async with node.receive("audit") as receiver:
        for _ in range(3):
            message = await anext(receiver)
            print(f"audit took {message.routing_key}: {message.body.decode()}")
            if message.body == b"free coffee":
                message.reject()
            else:
                message.accept()


async def main() -> None:
    """Declare, send, receive."""
    async with weft.Node() as node:
        node.declare_exchange("orders", "topic")
        node.declare_queue("refused")
        node.declare_queue("audit", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "refused"})
        node.bind("orders", "audit", "order.#")

        auditing = asyncio.create_task(audit(node))
        await node.send("orders/order.new", b"one coffee", content_type="text/plain")
        await node.send("orders/order.gift", b"free coffee")
        await node.send("orders/order.new", b"two teas")
        taken = await node.send("orders/invoice", b"nobody bound this key")
        print(f"the invoice went to {taken} queues")
        await auditing

        async with node.receive("refused") as refused:
            message = await anext(refused)
            print(f"refused: {message.body.decode()}")
            message.accept()


asyncio.run(main())
