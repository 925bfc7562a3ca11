"""Letters and posts of strangers: what they hold stays what it is on the other side, and they are as many as agreed."""

from __future__ import annotations

import asyncio
import gc
from contextlib import closing, suppress
from types import SimpleNamespace

import pytest
from proton import Message

import weft
from interop.proton10 import Client10
from weft.gateway import Letter, http
from weft.gateway.fabric import FabricSource, FabricTarget
from weft.gateway.http import HttpSource
from weft.model.errors import Unavailable

stomp = pytest.importorskip("weft.gateway.stomp")


class Frames:
    """The other end of STOMP connections: says yes to everything, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []
        """Command and headers of each frame, and its body last."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):
            while True:
                self._hear((await reader.readuntil(b"\0"))[:-1].decode().lstrip("\n"), writer)

    def _hear(self, frame: str, writer: asyncio.StreamWriter) -> None:
        head, _, body = frame.partition("\n\n")
        command, *headers = head.split("\n")
        answer = [header.partition(":")[2] for header in headers if header.startswith("receipt:")]
        if command == "STOMP":
            writer.write(b"CONNECTED\nversion:1.2\n\n\0")
        self.told.append([command, *headers, body])
        writer.writelines(f"RECEIPT\nreceipt-id:{name}\n\n\0".encode() for name in answer)


async def test_a_letter_is_one_stomp_frame_whatever_its_headers_are() -> None:
    frames = Frames()
    smuggled = "a\n\nhidden\nSEND\ndestination"
    letters = [
        Letter("plain", b"1", "text/plain", {"colour": "red", smuggled: "/queue/other"}),
        Letter("empty", b"", None, {"content-length": "300", "transaction": "t", "destination": "/queue/other"}),
        Letter("nul", b"2", None, {"a": "b\0SEND\ndestination:/queue/other\n\n"}),
        Letter("last", b"3"),
    ]
    async with await asyncio.start_server(frames.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with stomp.StompTarget("/queue/orders", "127.0.0.1", port, "guest", "guest", "/") as target:
            async with asyncio.timeout(30):
                refusals = await target.push(letters)
    assert refusals == {"nul": "it cannot be said in STOMP: there is a NUL in its head"}
    sent = [frame for frame in frames.told if frame[0] == "SEND"]
    assert [frame[-1] for frame in sent] == ["1", "", "3"]
    assert [header for frame in sent for header in frame if header.startswith("destination")] == [
        "destination:/queue/orders"
    ] * 3
    assert {"colour:red", "a\\n\\nhidden\\nSEND\\ndestination:/queue/other"} <= set(sent[0])
    assert not [header for header in sent[1] if header.startswith(("content-length", "transaction"))]


async def test_posts_that_are_still_on_their_way_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WAITING_MAX", 2)
    async with asyncio.timeout(30), HttpSource("127.0.0.1", 0, "/in") as source:
        posts = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", source.port)
            posts.append(writer)
            writer.write(b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        # The bodies of the first two have not come yet.
        assert b" 503 " in await reader.readline()
        for writer in posts:
            writer.write(b"x")
        assert [letter.body for letter in [*await source.pull(1), *await source.pull(1)]] == [b"x", b"x"]
        for writer in posts:
            writer.close()


async def test_posts_that_wait_take_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 100)
    monkeypatch.setattr(http, "WAITING_BYTES_MAX", 260)
    async with asyncio.timeout(30), HttpSource("127.0.0.1", 0, "/in") as source:
        posts = []

        async def post(length: bytes) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", source.port)
            posts.append(writer)
            writer.write(b"POST /in HTTP/1.1\r\nHost: x\r\n" + length + b"\r\nExpect: 100-continue\r\n\r\n")
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            return reader

        await post(b"Transfer-Encoding: chunked")  # it may become anything that is allowed
        await post(b"Content-Length: 90")
        assert b" 503 " in await (await post(b"Content-Length: 71")).readline()
        small = await post(b"Content-Length: 60")
        posts[0].write(b"1\r\nx\r\n0\r\n\r\n")
        assert [letter.body for letter in await source.pull(1)] == [b"x"]
        too_large = await post(b"Content-Length: 1000")
        posts[-1].write(b"x" * 1000)
        assert b" 413 " in await too_large.readline()
        posts[3].write(b"y" * 60)
        letters = await source.pull(1)
        await source.done(letters)
        assert b" 204 " in await small.readline()
        for writer in posts:
            writer.close()


async def test_a_body_of_any_type_becomes_bytes_and_what_is_no_message_is_put_aside() -> None:
    def send(port: int) -> None:
        with Client10(SimpleNamespace(host="127.0.0.1", port=port)) as client:
            link = client.sender("/queues/in")
            for value in (10**12, "text", {"a": [1, None]}, b"bytes"):
                client.send(link, b"\x00\x53\x77\xff")
                client.send(link, Message(body=value))

    async with weft.Node(listen="127.0.0.1:0") as node:
        node.declare_queue("in", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "aside"})
        node.declare_queue("aside")
        await asyncio.to_thread(send, node.ports[0])
        async with asyncio.timeout(30), FabricSource(f"amqp://127.0.0.1:{node.ports[0]}", "in") as source:
            letters: list[Letter] = []
            while len(letters) < 4:
                letters += await source.pull(2)
            await source.done(letters)
            while node._running.engine.queue_stats("/", "aside")[0] < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert [(letter.body, letter.content_type) for letter in letters] == [
        (b"1000000000000", "application/json"),
        (b"text", "text/plain"),
        (b'{"a": [1, null]}', "application/json"),
        (b"bytes", None),
    ]


async def test_a_letter_that_amqp_cannot_say_is_refused_and_the_others_go_on() -> None:
    letters = [
        Letter("type", b"1", "text/pl\u00e4n"),
        Letter("half \ud800", b"2"),
        Letter("header", b"3", None, {"\udcff": "x"}),
        Letter("fine", b"4"),
    ]
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.declare_queue("out")
        async with asyncio.timeout(30), FabricTarget(f"amqp://127.0.0.1:{node.ports[0]}", "out") as target:
            refusals = await target.push(letters)
        assert list(refusals) == ["type", "half \ud800", "header"]
        assert all(why.startswith("it cannot be said in AMQP: ") for why in refusals.values())
        assert node._running.engine.queue_stats("/", "out") == (1, 0, 0)


async def test_a_broker_that_goes_in_the_middle_leaves_no_answer_unread() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\0")
            writer.write(b"CONNECTED\nversion:1.2\n\n\0")
            await reader.readuntil(b"SEND")
            writer.transport.abort()

    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
    letters = [Letter(str(number), b"x" * 100_000) for number in range(100)]
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with stomp.StompTarget("/queue/orders", "127.0.0.1", port, "guest", "guest", "/") as target:
            with pytest.raises(Unavailable):
                await target.push(letters)
            with pytest.raises(Unavailable):
                await target.push(letters)
    del target
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
