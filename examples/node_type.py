"""An address answered by Python: everything sent to `echo` comes back to whoever receives from it, in capitals."""

import asyncio

from proton.utils import BlockingConnection

import weft


class Echo(weft.NodeType):
    """Sends back what it is sent."""

    def on_attach(self, link: weft.Link) -> None:
        print("attached:", "a sender" if link.sends else "a receiver")

    def on_detach(self, link: weft.Link) -> None:
        print("detached:", "a sender" if link.sends else "a receiver")

    async def on_message(self, message: weft.Message) -> None:
        await self.send(message.body.upper(), correlation_id=message.properties.get("message_id"))
        message.accept()

    def on_destroy(self) -> None:
        print("gone")


def talk(port: int) -> str:
    """A client like any other."""
    from proton import Message

    connection = BlockingConnection(f"127.0.0.1:{port}", timeout=10)
    connection.create_sender("echo").send(Message(body=b"hello", inferred=True, id="1"))
    receiver = connection.create_receiver("echo")
    answer = receiver.receive(timeout=10)
    receiver.accept()
    connection.close()
    return f"{bytes(answer.body).decode()} (in answer to {answer.correlation_id})"


async def main() -> None:
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("echo", Echo())
        print("came back:", await asyncio.to_thread(talk, node.ports[0]))
        await node.unregister("echo")


asyncio.run(main())
