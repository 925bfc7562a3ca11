"""An address answered by Python: everything sent to `echo` comes back to whoever receives from it, in capitals."""

import asyncio

import weft


class Echo(weft.NodeType):
    """Sends back what it is sent, and tells whatever it is told."""

    def on_create(self) -> None:
        print("at", self.address)

    def on_attach(self, link: weft.Link) -> None:
        print("attached:", "a sender" if link.sends else "a receiver")

    async def on_message(self, message: weft.Message) -> None:
        await self.send(message.body.upper(), message_id="answer", correlation_id=message.properties["message_id"])
        message.accept()

    def on_flow(self, link: weft.Link, credit: int) -> None:
        print("a receiver wants", credit, "by the link", link.name)

    def on_settled(self, message_id: str, outcome: str) -> None:
        print(message_id, outcome)

    def on_detach(self, link: weft.Link) -> None:
        print("detached:", "a sender" if link.sends else "a receiver")

    def on_destroy(self) -> None:
        print("gone")


async def main() -> None:
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("echo", Echo())
        async with weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:  # or any other client of AMQP 1.0
            await fabric.send("echo", b"hello", message_id="1")
            async with fabric.receive("echo", credit=1, timeout_s=30) as answers:
                answer = await anext(answers)
                print("came back:", answer.data.decode(), "in answer to", answer.correlation_id)


asyncio.run(main())
