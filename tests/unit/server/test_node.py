"""The embedded node on the real kernel: messages in the process, to it and from it, and its life."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aio_pika
import pytest
import pytest_asyncio

import weft
from weft.config import parse


@pytest_asyncio.fixture
async def node() -> AsyncIterator[weft.Node]:
    async with weft.Node(name="here") as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; the test's time limit ends what never comes."""
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


async def take(node: weft.Node, address: str, count: int = 1) -> list[weft.Message]:
    async with node.receive(address) as receiver:
        messages = [await anext(receiver) for _ in range(count)]
        for message in messages:
            message.accept()
    return messages


async def test_a_message_keeps_body_and_properties(node: weft.Node) -> None:
    taken = await node.send("q", b"\x00body", content_type="text/plain", headers={"n": 1}, priority=3)
    assert taken == 1
    (message,) = await take(node, "q")
    assert (message.body, message.routing_key, message.redelivered) == (b"\x00body", "q", False)
    assert message.properties["content_type"] == "text/plain"
    assert message.properties["headers"] == {"n": 1}
    assert message.properties["priority"] == 3


async def test_text_is_sent_as_utf8(node: weft.Node) -> None:
    await node.send("q", "grüße")
    assert (await take(node, "q"))[0].body == "grüße".encode()


async def test_no_socket_is_opened() -> None:
    before = sockets()
    async with weft.Node() as node:
        await node.send("q", b"x")
        await take(node, "q")
        assert sockets() == before
        assert node.ports == ()


def sockets() -> set[str]:
    links = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return {link for link in links if link.startswith("socket:")}


async def test_other_file_descriptors_share_the_loop_of_a_node(node: weft.Node) -> None:
    there, here = os.pipe()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_reader(there, lambda: heard.put_nowait(os.read(there, 100)))
    try:
        for number in range(3):
            await node.send("q", b"%d" % number)
            os.write(here, b"%d" % number)
            assert await asyncio.wait_for(heard.get(), 30) == b"%d" % number
        assert [message.body for message in await take(node, "q", 3)] == [b"0", b"1", b"2"]
    finally:
        loop.remove_reader(there)
        os.close(there)
        os.close(here)


async def test_exchange_and_key(node: weft.Node) -> None:
    node.declare_exchange("events", "topic")
    node.declare_queue("audit")
    node.bind("events", "audit", "order.#")
    assert await node.send("events/order.new", b"1") == 1
    assert await node.send("events/invoice.new", b"2") == 0
    assert (await take(node, "audit"))[0].body == b"1"
    node.unbind("events", "audit", "order.#")
    assert await node.send("events/order.new", b"3") == 0


async def test_a_subscription_ends_with_its_receiver(node: weft.Node) -> None:
    node.declare_exchange("events", "fanout")
    async with node.receive("events/") as receiver:
        assert await node.send("events/any", b"1") == 1
        (await anext(receiver)).accept()
    await until(lambda: not node.snapshot()["queues"])
    assert await node.send("events/any", b"2") == 0


async def test_outcomes(node: weft.Node) -> None:
    node.declare_queue("dead")
    node.declare_queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    await node.send("q", b"1")
    async with node.receive("q") as receiver:
        first = await anext(receiver)
        first.release()
        again = await anext(receiver)
        assert (first.redelivered, again.redelivered) == (False, True)
        again.reject()
    assert (await take(node, "dead"))[0].body == b"1"


async def test_unsettled_messages_go_back(node: weft.Node) -> None:
    await node.send("q", b"1")
    async with node.receive("q") as receiver:
        await anext(receiver)
    assert (await take(node, "q"))[0].redelivered


async def test_credit_bounds_what_a_receiver_holds(node: weft.Node) -> None:
    for number in range(5):
        await node.send("q", bytes([number]))
    async with node.receive("q", credit=2) as slow, node.receive("q", credit=5) as other:
        assert [(await anext(other)).body[0] for _ in range(3)] != []
        held = [await anext(slow), await anext(slow)]
        assert len(held) == 2
        assert node.snapshot()["queues"][0]["unsettled"] == 5


async def test_a_loop_ends_when_its_queue_is_deleted(node: weft.Node) -> None:
    await node.send("q", b"1")
    seen = []

    async def read() -> None:
        async for message in node.receive("q"):
            seen.append(message.body)
            message.accept()

    reading = asyncio.create_task(read())
    await until(lambda: bool(seen))
    node.delete_queue("q")
    await reading
    assert seen == [b"1"]


async def test_rules_hold_for_the_embedder_too(node: weft.Node) -> None:
    node.declare_queue("q", durable=True)
    with pytest.raises(weft.Refused) as caught:
        node.declare_queue("q", durable=False)
    assert caught.value.code == 406
    with pytest.raises(weft.Refused):
        node.bind("nowhere", "q")
    with pytest.raises(weft.Refused):
        node.declare_queue("q", vhost="nowhere")


async def test_quiesce_holds_messages_back_and_resume_loses_none(node: weft.Node) -> None:
    node.quiesce()
    async with node.receive("q") as receiver:
        for number in range(10):
            await node.send("q", bytes([number]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(receiver), 0.05)
        node.resume()
        assert [(await anext(receiver)).body[0] for _ in range(10)] == list(range(10))


async def test_senders_wait_for_room_and_go_on() -> None:
    limits = weft.Limits(memory_bytes_max=1_000_000)
    async with weft.Node(limits=limits) as node:
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(40):
                await node.send("q", bytes(100_000))
                sent += 1

        sending = asyncio.create_task(send())
        async with node.receive("q", credit=1) as receiver:
            for _ in range(40):
                message = await anext(receiver)
                assert node.snapshot()["stats"]["memory_bytes"] < 2_500_000
                message.accept()
        await sending
        assert sent == 40


async def test_the_same_addresses_serve_other_processes() -> None:
    async with weft.Node(listen="127.0.0.1:0") as node:
        url = f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/"
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.declare_queue("q", durable=True)
            await channel.default_exchange.publish(aio_pika.Message(b"from outside"), "q")
            assert (await take(node, "q"))[0].body == b"from outside"
            await node.send("q", b"from inside", correlation_id="7")
            queue = await channel.get_queue("q")
            message = await queue.get()
            assert (message.body, message.correlation_id) == (b"from inside", "7")
            await message.ack()


async def test_definitions_survive_in_a_data_folder(tmp_path: Path) -> None:
    async with weft.Node(data_dir=tmp_path) as node:
        node.declare_exchange("events", "topic")
        node.declare_queue("q")
        node.bind("events", "q", "#")
    async with weft.Node(data_dir=tmp_path) as node:
        assert await node.send("events/any", b"x") == 1


async def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(weft.Unavailable):
            await weft.Node(listen=["127.0.0.1:0", f"127.0.0.1:{port}"], data_dir=tmp_path).start()
    async with weft.Node(listen=f"127.0.0.1:{port}", data_dir=tmp_path) as node:
        assert node.ports == (port,)


async def test_a_node_that_does_not_run_says_so() -> None:
    node = weft.Node()
    with pytest.raises(weft.LocalProtocolError, match="does not run"):
        await node.send("q", b"x")
    await node.start()
    with pytest.raises(weft.LocalProtocolError, match="already"):
        await node.start()
    await node.stop()
    with pytest.raises(weft.LocalProtocolError, match="does not run"):
        node.receive("q")


async def test_reloading_takes_away_who_is_gone() -> None:
    ann = "[[users]]\nname='ann'\npassword='a'\n[[permissions]]\nuser='ann'\nread='.*'\n"
    async with weft.Node(listen="127.0.0.1:0", configuration=parse(ann)) as node:
        url = f"amqp://ann:a@127.0.0.1:{node.ports[0]}/"
        connection = await aio_pika.connect(url)
        closed = asyncio.Event()
        connection.close_callbacks.add(lambda *_: closed.set())
        await node.reload(parse(""))
        await closed.wait()
        with pytest.raises(aio_pika.exceptions.ProbableAuthenticationError):
            await aio_pika.connect(url)


async def test_guest_and_anonymous_can_be_turned_off() -> None:
    settings = parse("[settings]\nguest = false\nanonymous = false\n")
    async with weft.Node(listen="127.0.0.1:0", configuration=settings) as node:
        with pytest.raises(aio_pika.exceptions.ProbableAuthenticationError):
            await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem")]
    subprocess.run([*command, "-out", str(folder / "cert.pem")], check=True, capture_output=True)
    return folder


async def test_tls_beside_a_plain_listener(certificate: Path) -> None:
    listeners = (
        "[[listen]]\naddress = '127.0.0.1:0'\n"
        "[[listen]]\naddress = '127.0.0.1:0'\ntls_cert = 'cert.pem'\ntls_key = 'key.pem'\n"
    )
    async with weft.Node(configuration=parse(listeners, folder=certificate)) as node:
        context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        url = f"amqps://guest:guest@127.0.0.1:{node.ports[1]}/"
        async with await aio_pika.connect(url, ssl_context=context) as connection:
            channel = await connection.channel()
            await channel.declare_queue("q", durable=True)
            body = os.urandom(1_000_000)
            await channel.default_exchange.publish(aio_pika.Message(body), "q")
        assert (await take(node, "q"))[0].body == body


async def test_a_peer_that_says_nothing_is_cut_and_others_are_served() -> None:
    limits = "[limits]\nunauthenticated_s = 1\n"
    listener = "[[listen]]\naddress = '127.0.0.1:0'\n"
    async with weft.Node(configuration=parse(limits + listener)) as node:
        silent, writer = await asyncio.open_connection("127.0.0.1", node.ports[0])
        async with await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/"):
            assert await silent.read() == b""
        writer.close()


async def test_a_peer_that_drags_out_tls_or_what_follows_is_cut_and_others_are_served(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("weft.net.listen"), "TLS_HANDSHAKE_TIMEOUT_S", 1.0)
    configured = (
        "[limits]\nunauthenticated_s = 1\n"
        "[[listen]]\naddress = '127.0.0.1:0'\ntls_cert = 'cert.pem'\ntls_key = 'key.pem'\n"
    )
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))

    async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
        """A byte now and then, for much longer than is allowed."""
        with contextlib.suppress(ConnectionError):
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.2)

    async def is_cut(port: int, tls: ssl.SSLContext | None, data: bytes) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        dripping = asyncio.create_task(drip(writer, data))
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(reader.read(1_000), 30):
                pass
        is_early = not dripping.done()
        dripping.cancel()
        writer.close()
        return is_early

    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(501)
    start = b"AMQP\x00\x00\x09\x01" + bytes(500)
    async with weft.Node(configuration=parse(configured, folder=certificate)) as node:
        slow = asyncio.gather(is_cut(node.ports[0], None, hello), is_cut(node.ports[0], context, start))
        url = f"amqps://guest:guest@127.0.0.1:{node.ports[0]}/"
        async with await aio_pika.connect(url, ssl_context=context) as connection:
            await connection.channel()
        assert all(await slow)


async def test_a_stream_is_read_again_and_again() -> None:
    async with weft.Node() as node:
        node.declare_queue("log", arguments={"x-queue-type": "stream"})
        for number in range(5):
            await node.send("log", b"%d" % number)
        for _ in range(2):
            async with node.receive("log", offset=2, credit=1) as receiver:
                for expected in (2, 3, 4):
                    message = await anext(receiver)
                    assert (message.offset, message.body) == (expected, b"%d" % expected)
                    message.accept()
        with pytest.raises(ValueError, match="offset is first"):
            node.receive("log", offset="soon")
        (row,) = (row for row in node.snapshot()["streams"] if row["name"] == "log")
        assert (row["first_offset"], row["next_offset"], row["readers"]) == (0, 5, 0)
