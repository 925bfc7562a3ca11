"""`amqp+srv://`: the places that a name server names, in its order, asked again whenever the connection is lost."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

import peers
import weft
from weft.client.url import resolve, targets

NAME = "_amqp._tcp.weft.test."


class NameServer(asyncio.DatagramProtocol):
    """Answers questions for the SRV records of one name, on a port of its own."""

    def __init__(self) -> None:
        self.records: list[str] = []
        """`PRIORITY WEIGHT PORT TARGET` each."""
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.DatagramTransport = transport  # type: ignore[assignment]

    @property
    def place(self) -> str:
        host, port = self.transport.get_extra_info("sockname")
        return f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.AA
        if str(question.question[0].name) == NAME and self.records:
            answer.answer.append(dns.rrset.from_text(NAME, 1, "IN", "SRV", *self.records))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.asked += 1
        self.transport.sendto(answer.to_wire(), addr)


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield server
    transport.close()


async def test_the_best_place_that_answers_serves(server: NameServer) -> None:
    url = f"amqp+srv://weft.test?resolver={server.place}"
    async with weft.Node(name="second", listen=["127.0.0.1:0"]) as second:
        async with weft.Node(name="first", listen=["127.0.0.1:0"]) as first:
            server.records = [
                f"30 0 {second.ports[0]} localhost.",
                f"10 0 {peers.free_port()} localhost.",
                f"20 0 {first.ports[0]} localhost.",
            ]
            fabric = await weft.connect(url, timeout_s=30).open()
            assert fabric.core.last_peer is not None
            assert fabric.core.last_peer.container == "first"
        try:
            await fabric.send("q", 1)  # waits for the next place
            assert fabric.core.last_peer.container == "second"
            assert server.asked >= 2
        finally:
            await fabric.close()


async def test_among_equals_the_heavier_come_first_more_often(server: NameServer) -> None:
    random.seed(2782)
    server.records = ["10 90 1 heavy.test.", "10 10 2 light.test.", "5 0 3 best.test."]
    (target,) = targets(f"amqp+srv://user:word@weft.test/orders?resolver={server.place}")
    orders = [await asyncio.to_thread(resolve, target) for _ in range(50)]
    assert {(found[0].host, found[0].port, found[0].user, found[0].vhost) for found in orders} == {
        ("best.test", 3, "user", "orders")
    }
    assert sum(found[1].host == "heavy.test" for found in orders) > 25


async def test_a_name_that_is_not_known_is_told(server: NameServer) -> None:
    with pytest.raises(weft.Unavailable, match="no SRV records"):
        await weft.connect(f"amqp+srv://weft.test?resolver={server.place}", timeout_s=0.5).open()


async def test_targets_are_looked_up_where_their_records_are() -> None:
    """The names of a fabric's nodes are known to `weft names` alone."""
    async with weft.Node(name="alpha", listen=["127.0.0.1:0"]) as node:
        words = ["names", "--url", f"amqp://127.0.0.1:{node.ports[0]}", "--listen", "127.0.0.1:0"]
        names = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "weft", *words, "--domain", "weft.test", stdout=asyncio.subprocess.PIPE
        )
        try:
            assert names.stdout is not None
            async with asyncio.timeout(60):
                said = (await names.stdout.readline()).decode()
            assert said.startswith("answering for weft.test on ")
            async with weft.connect(f"amqp+srv://weft.test?resolver={said.split()[-1]}", timeout_s=30) as fabric:
                await fabric.send("q", 1)
                target = fabric.core.target
                assert target is not None
                assert (target.host, target.address) == ("alpha.nodes.weft.test", "127.0.0.1")
        finally:
            names.terminate()
            await names.wait()
