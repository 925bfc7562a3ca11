"""One client library doing one thing as fast as it can: the load of `clients.py`.

Owns the same three tasks for four libraries: send confirmed messages, receive and accept them one at a time, ask and
wait for the reply. The library, the task, the port and the count come in; one line of JSON with the rate, the client's
own CPU time per message and the median round trip goes out.
It must never be imported by what it measures: each run is a process of its own.
Rule: every library the way its documentation shows, with as many messages on their way as its design allows: `WINDOW`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable

BODY = b"x" * 1024
WINDOW = 1_000
"""Unconfirmed messages at a time where a library can have several."""
PREFETCH = 500


def report(started: tuple[float, float], count: int, trips: list[float] | None = None) -> None:
    wall = time.perf_counter() - started[0]
    cpu = time.process_time() - started[1]
    result = {"rate": count / wall, "cpu_us": cpu / count * 1e6}
    if trips:
        result["p50_us"] = statistics.median(trips) * 1e6
    print(json.dumps(result))


def start() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


# weft


def weft_send(port: int, count: int) -> None:
    import weft

    async def main() -> None:
        async with weft.connect(f"amqp://127.0.0.1:{port}", window=WINDOW) as fabric:
            await fabric.send("bench", BODY, durable=False)
            started = start()
            await in_lanes(lambda: fabric.send("bench", BODY, durable=False), count)
            report(started, count)

    run(main())


def weft_receive(port: int, count: int) -> None:
    import weft

    async def main() -> None:
        async with weft.connect(f"amqp://127.0.0.1:{port}") as fabric:
            started, left = start(), count
            async for message in fabric.receive("bench", accept="explicit", credit=PREFETCH):
                message.accept()
                left -= 1
                if not left:
                    break
            report(started, count)

    run(main())


def weft_request(port: int, count: int) -> None:
    import weft

    async def main() -> None:
        async with weft.connect(f"amqp://127.0.0.1:{port}") as fabric:
            await fabric.request("bench-rpc", BODY, durable=False)
            started, trips = start(), []
            for _ in range(count):
                before = time.perf_counter()
                await fabric.request("bench-rpc", BODY, durable=False)
                trips.append(time.perf_counter() - before)
            report(started, count, trips)

    run(main())


def weft_replies(port: int, count: int) -> None:
    """What a shared reply address costs: requests of one client to one service, in turns by three reply addresses.

    `shared` is `request` as it is, `own` an address made before that only these requests use, `made` one that is made
    for each, which is what many libraries do. The same frames go out in all three, and nobody waits for their outcomes.
    """
    import weft
    from weft.client.receiving import Receiver
    from weft.client.tickets import Ticket

    async def main() -> None:
        async with weft.connect(f"amqp://127.0.0.1:{port}") as fabric, fabric.session() as session:
            await fabric.request("bench-rpc", BODY, durable=False)
            outlet = fabric._outlets["bench-rpc"]

            async def ask(replies: Receiver) -> None:
                properties = {"durable": False, "reply_to": replies.address, "correlation_id": "own"}
                properties |= {"ttl_ms": 30_000, "expires_at": time.time() + 30}
                outlet.send((BODY,), properties, Ticket(), now=True, batchable=True)
                (await anext(replies)).accept()

            async def shared() -> None:
                await fabric.request("bench-rpc", BODY, durable=False)

            async def made() -> None:
                replies = await session.receiver(None, dynamic=True, window=1).ready()
                await ask(replies)
                used.append(replies)

            own = await session.receiver(None, dynamic=True, window=1).ready()
            used: list[Receiver] = []
            trips: dict[str, list[float]] = {"shared": [], "own": [], "made": []}
            for _ in range(count):
                for name, once in (("shared", shared), ("own", lambda: ask(own)), ("made", made)):
                    before = time.perf_counter()
                    await once()
                    trips[name].append(time.perf_counter() - before)
                await used.pop().close()
            print(json.dumps({f"{name}_us": statistics.median(times) * 1e6 for name, times in trips.items()}))

    run(main())


def weft_memory(_port: int, count: int) -> None:
    import weft

    async def main() -> None:
        async with weft.Node(name="bench"), weft.connect("weft+memory:bench") as fabric:
            messages = await fabric.receive("bench").ready()
            started, trips = start(), []
            for _ in range(count):
                before = time.perf_counter()
                sending = asyncio.ensure_future(fabric.send("bench", BODY))
                await anext(messages)
                trips.append(time.perf_counter() - before)
                await sending
            report(started, count, trips)

    run(main())


# aio-pika


def aio_pika_send(port: int, count: int) -> None:
    import aio_pika

    async def main() -> None:
        async with await aio_pika.connect_robust(port=port) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.declare_queue("bench", durable=True)
            exchange = channel.default_exchange
            message = aio_pika.Message(BODY)
            started = start()
            await in_lanes(lambda: exchange.publish(message, "bench"), count)
            report(started, count)

    run(main())


def aio_pika_receive(port: int, count: int) -> None:
    import aio_pika

    async def main() -> None:
        async with await aio_pika.connect_robust(port=port) as connection:
            channel = await connection.channel()
            await channel.set_qos(PREFETCH)
            queue = await channel.declare_queue("bench", durable=True)
            started, left = start(), count
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    left -= 1
                    if not left:
                        break
            report(started, count)

    run(main())


def aio_pika_request(port: int, count: int) -> None:
    import aio_pika
    from aio_pika.patterns import RPC

    async def main() -> None:
        async with await aio_pika.connect_robust(port=port) as connection:
            rpc = await RPC.create(await connection.channel())
            await rpc.call("bench-rpc-aio", kwargs={"body": BODY})
            started, trips = start(), []
            for _ in range(count):
                before = time.perf_counter()
                await rpc.call("bench-rpc-aio", kwargs={"body": BODY})
                trips.append(time.perf_counter() - before)
            report(started, count, trips)

    run(main())


# pika


def pika_send(port: int, count: int) -> None:
    """The asynchronous adapter, as pika's own publisher example does it: the blocking one confirms one at a time."""
    import pika
    from pika.adapters.select_connection import SelectConnection

    confirmed, sent = 0, 0
    started = (0.0, 0.0)

    def on_confirm(frame: object) -> None:
        nonlocal confirmed
        method = frame.method  # type: ignore[attr-defined]
        confirmed = method.delivery_tag if method.multiple else confirmed + 1
        fill()

    def fill() -> None:
        nonlocal sent
        while sent < count and sent - confirmed < WINDOW:
            channel.basic_publish("", "bench", BODY)
            sent += 1
        if confirmed >= count:
            report(started, count)
            connection.close()

    def on_channel(opened: object) -> None:
        nonlocal channel
        channel = opened
        channel.queue_declare("bench", durable=True, callback=lambda _: channel.confirm_delivery(on_confirm, go))

    def go(_frame: object) -> None:
        nonlocal started
        started = start()
        fill()

    channel: object = None
    connection = SelectConnection(
        pika.ConnectionParameters("127.0.0.1", port),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=lambda closed, _reason: closed.ioloop.stop(),
    )
    connection.ioloop.start()


def pika_receive(port: int, count: int) -> None:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    started, left = start(), count
    for method, _properties, _body in channel.consume("bench"):
        channel.basic_ack(method.delivery_tag)
        left -= 1
        if not left:
            break
    report(started, count)
    connection.close()


# python-qpid-proton


def qpid_proton_send(port: int, count: int) -> None:
    from proton import Message
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    class Send(MessagingHandler):
        sent = confirmed = 0

        def on_start(self, event: object) -> None:
            connection = event.container.connect(f"127.0.0.1:{port}")  # type: ignore[attr-defined]
            event.container.create_sender(connection, "bench")  # type: ignore[attr-defined]
            self.message = Message(body=BODY)
            self.started = start()

        def on_sendable(self, event: object) -> None:
            sender = event.sender  # type: ignore[attr-defined]
            while sender.credit and self.sent < count and self.sent - self.confirmed < WINDOW:
                sender.send(self.message)
                self.sent += 1

        def on_accepted(self, event: object) -> None:
            self.confirmed += 1
            if self.confirmed == count:
                report(self.started, count)
                event.connection.close()  # type: ignore[attr-defined]
            elif self.sent - self.confirmed < WINDOW // 2:
                self.on_sendable(event)

    Container(Send()).run()


def qpid_proton_receive(port: int, count: int) -> None:
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    class Receive(MessagingHandler):
        received = 0

        def on_start(self, event: object) -> None:
            connection = event.container.connect(f"127.0.0.1:{port}")  # type: ignore[attr-defined]
            event.container.create_receiver(connection, "bench")  # type: ignore[attr-defined]
            self.started = start()

        def on_message(self, event: object) -> None:
            self.received += 1
            if self.received == count:
                report(self.started, count)
                event.connection.close()  # type: ignore[attr-defined]

    Container(Receive(prefetch=PREFETCH)).run()


# what they share


async def in_lanes(send: Callable[[], object], count: int) -> None:
    """So many sends, `WINDOW` of them at a time."""
    left = count

    async def lane() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await send()  # type: ignore[misc]

    await asyncio.gather(*(lane() for _ in range(WINDOW)))


def run(main: object) -> None:
    import uvloop

    uvloop.run(main)  # type: ignore[arg-type]


def serve(port: int, library: str) -> None:
    """The other side of requests, until standard input ends."""
    run(_serve_weft(port) if library == "weft" else _serve_aio_pika(port))


async def _stdin_ends() -> None:
    await asyncio.to_thread(sys.stdin.read)


async def _serve_weft(port: int) -> None:
    import weft

    async with weft.connect(f"amqp://127.0.0.1:{port}") as fabric:

        @fabric.service("bench-rpc")
        async def echo(request: object) -> object:
            return request.body  # type: ignore[attr-defined]

        await echo.start()
        print("ready", flush=True)
        await _stdin_ends()


async def _serve_aio_pika(port: int) -> None:
    import aio_pika
    from aio_pika.patterns import RPC

    async def echo(body: bytes) -> bytes:
        return body

    async with await aio_pika.connect_robust(port=port) as connection:
        rpc = await RPC.create(await connection.channel())
        await rpc.register("bench-rpc-aio", echo, auto_delete=True)
        print("ready", flush=True)
        await _stdin_ends()


if __name__ == "__main__":
    _library, _task, _port, _count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if _task == "serve":
        serve(_port, _library)
    else:
        globals()[f"{_library}_{_task}"](_port, _count)
