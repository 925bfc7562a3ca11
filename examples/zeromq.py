"""0MQ at the edges, a fabric between: REQ sockets ask, a REP socket answers, and each asker gets its own replies.

Neither side knows of weft. `front` is what askers connect to: a ROUTER socket, which tells them apart, and a request
into the fabric for each question. `back` is a service of the fabric whose answers a REP socket gives. Between the two a
question has a deadline, finds the service wherever it runs, and outlives the death of a node.
"""

import asyncio
from itertools import count

import zmq
from zmq.asyncio import Context, Socket

import weft
from weft.client import Fabric, Message

OPEN_MAX = 1_000
"""Questions on their way at once; more wait in their sockets."""
ANSWER_S = 10.0


async def front(fabric: Fabric, service: str, askers: Socket) -> None:
    """Carry questions of REQ sockets into the fabric, and each reply to the one who asked."""
    room = asyncio.Semaphore(OPEN_MAX)

    async def ask(asker: bytes, question: bytes) -> None:
        try:
            reply = bytes((await fabric.request(service, question, timeout_s=ANSWER_S)).data)
        except weft.WeftError as error:
            reply = f"error: {error}".encode()  # a REQ socket cannot go on without an answer
        finally:
            room.release()
        await askers.send_multipart([asker, b"", reply])

    async with asyncio.TaskGroup() as questions:
        while True:
            await room.acquire()
            match await askers.recv_multipart():
                case [asker, b"", question]:
                    questions.create_task(ask(asker, question))
                case _:
                    room.release()  # not from a REQ socket


async def back(fabric: Fabric, service: str, server: Socket) -> None:
    """Be a service of the fabric that a REP socket answers; it returns the number that stands before a question."""
    waiting: dict[bytes, asyncio.Future[bytes]] = {}
    numbers = count()

    async def answer(message: Message) -> bytes:
        number = str(next(numbers)).encode()
        waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await server.send_multipart([number, b"", bytes(message.data)])
            async with asyncio.timeout(ANSWER_S):
                return await waiting[number]
        finally:
            del waiting[number]

    await fabric.service(service, concurrency=OPEN_MAX)(answer).start()
    while True:
        number, _, reply = await server.recv_multipart()
        if number in waiting:
            waiting[number].set_result(reply)


async def squares(context: Context, address: str) -> None:
    """A server as 0MQ has them."""
    with context.socket(zmq.REP) as socket:
        socket.bind(address)
        while True:
            await socket.send(str(int(await socket.recv()) ** 2).encode())


async def asker(context: Context, address: str, first: int) -> str:
    """A client as 0MQ has them: three questions, one after another."""
    with context.socket(zmq.REQ) as socket:
        socket.connect(address)
        replies = []
        for number in range(first, first + 3):
            await socket.send(str(number).encode())
            replies.append(f"{number}² = {(await socket.recv()).decode()}")
        return ", ".join(replies)


async def main() -> None:
    """Three askers at once, one server, and a node between."""
    async with weft.Node(name="edge"), weft.connect("weft+memory:edge") as fabric:
        with Context() as context, context.socket(zmq.ROUTER) as askers, context.socket(zmq.DEALER) as server:
            askers.bind("inproc://front")
            server.connect("inproc://squares")
            running = [
                asyncio.create_task(squares(context, "inproc://squares")),
                asyncio.create_task(back(fabric, "square", server)),
                asyncio.create_task(front(fabric, "square", askers)),
            ]
            async with asyncio.timeout(30):
                told = await asyncio.gather(*(asker(context, "inproc://front", first) for first in (1, 10, 100)))
            print("\n".join(told))
            for task in running:
                task.cancel()
            await asyncio.wait(running)


asyncio.run(main())
