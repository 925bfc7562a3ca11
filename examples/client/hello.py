"""Hello twice: by the library, which hides the protocol, and by the machine below it, which leaves nothing out.

The machine never waits: it takes bytes and gives bytes. Here a plain socket drives it; `trio_driver.py` is a whole
driver, and `../c/hello.c` the same machine from C.
"""

import asyncio
import socket
from time import monotonic_ns

import weft
from weft._kernel import Client


async def simple(url: str) -> None:
    """Send, receive, accept."""
    async with weft.connect(url) as fabric:
        await fabric.send("greetings", "hello, simply")
        async for message in fabric.receive("greetings"):
            print(message.body)
            break


def engine(port: int) -> None:
    """Links, credit, bytes and time by hand."""
    machine = Client("hello")
    machine.send(machine.attach_sender("out", "letters"), [b"hello, by the engine"])
    link = machine.attach_receiver("in", "letters", window=1, settled=True)
    machine.start(monotonic_ns())
    with socket.create_connection(("127.0.0.1", port)) as transport:
        while not (deliveries := machine.poll_deliveries(link, 1)):
            transport.sendall(machine.poll_transmit())
            machine.receive(transport.recv(65_536), monotonic_ns())
    print(deliveries[0].body.decode())


async def main() -> None:
    """A node in this process, with a port for the socket."""
    async with weft.Node(listen="127.0.0.1:0") as node:
        port = node.ports[0]
        await simple(f"amqp://127.0.0.1:{port}")
        await asyncio.to_thread(engine, port)


asyncio.run(main())
