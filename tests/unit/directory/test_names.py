"""The directory as names: what a resolver asks, over UDP and TCP, and what the client finds by it."""

from __future__ import annotations

import asyncio
import random

import dns.asyncquery
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import pytest

import weft
from weft.cli.names import Server, follow
from weft.client.management import Management
from weft.directory.names import Zone

ENTRIES = [
    ("/members/a", {"urls": ["amqp://10.0.0.1:5673"]}),
    ("/members/b", {"urls": ["amqp://[2001:db8::2]:5672"]}),
    ("/members/c", {"urls": ["amqp://c.example:5674"]}),
    ("/members/d", {"urls": "wrong"}),
    ("/members/e", {"urls": ["amqp://[fe80::1%25eth0]:5672"]}),
    ("/services/user.lifecycle/a", {"instances": ["one"]}),
    ("/services/user.lifecycle/b", {}),
    ("/services/user.lifecycle/gone", {}),
    ("/services/two words/a", {}),
    ("/services/" + "x" * 64 + "/a", {}),
    ("/settings/color", {"is": "blue"}),
]


def zone() -> Zone:
    made = Zone("weft.test")
    made.update(ENTRIES)
    return made


def ask(made: Zone, name: str, kind: str = "SRV") -> tuple[str, list[str]]:
    """(code, records) of an answer."""
    wire = made.answer(dns.message.make_query(name, kind).to_wire(), over_udp=False)
    assert wire is not None
    answer = dns.message.from_wire(wire)
    return dns.rcode.to_text(answer.rcode()), sorted(str(row) for rows in answer.answer for row in rows)


def test_services_and_nodes_have_records() -> None:
    made = zone()
    a, b = "0 100 5673 a.nodes.weft.test.", "0 100 5672 b.nodes.weft.test."
    assert ask(made, "_amqp._tcp.user.lifecycle.weft.test") == ("NOERROR", sorted([a, b]))
    assert ask(made, "_AMQP._tcp.User.Lifecycle.WEFT.test") == ("NOERROR", sorted([a, b]))
    assert ask(made, "_amqp._tcp.weft.test") == ("NOERROR", sorted([a, b, "0 100 5674 c.example."]))
    assert ask(made, "a.nodes.weft.test", "A") == ("NOERROR", ["10.0.0.1"])
    assert ask(made, "b.nodes.weft.test", "AAAA") == ("NOERROR", ["2001:db8::2"])
    assert ask(made, "a.nodes.weft.test", "AAAA") == ("NOERROR", [])
    assert ask(made, "_amqp._tcp.nothing.weft.test") == ("NXDOMAIN", [])
    assert ask(made, "_amqp._tcp.elsewhere.test") == ("REFUSED", [])
    made.update([])
    assert ask(made, "_amqp._tcp.user.lifecycle.weft.test") == ("NXDOMAIN", [])


def test_what_does_not_fit_is_asked_for_again() -> None:
    made = Zone("weft.test")
    made.update((f"/members/node-{number:03}", {"urls": [f"amqp://10.0.0.{number}"]}) for number in range(150))
    query = dns.message.make_query("_amqp._tcp.weft.test", "SRV").to_wire()
    over_udp, over_tcp = (made.answer(query, over_udp=is_udp) for is_udp in (True, False))
    assert over_udp is not None
    assert over_tcp is not None
    assert len(over_udp) <= 512
    assert dns.message.from_wire(over_udp).flags & dns.flags.TC
    assert len(dns.message.from_wire(over_tcp).answer[0]) == 100


def test_whatever_comes_is_answered_or_dropped() -> None:
    made, chance = zone(), random.Random(7)
    good = dns.message.make_query("_amqp._tcp.weft.test", "SRV").to_wire()
    for _ in range(500):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        made.answer(bytes(data[: chance.randrange(len(data) + 1)]), over_udp=True)
    update = dns.message.Message()
    update.set_opcode(dns.opcode.NOTIFY)
    wire = made.answer(update.to_wire(), over_udp=True)
    assert wire is not None
    assert dns.message.from_wire(wire).rcode() == dns.rcode.NOTIMP
    with pytest.raises(ValueError, match="no domain"):
        Zone("a..b")


async def test_a_fabric_is_found_by_name() -> None:
    async with weft.Node(name="here", listen="127.0.0.1:0") as node:
        url = f"amqp://127.0.0.1:{node.ports[0]}"
        made = Zone("weft.test")
        async with weft.connect(url) as fabric, Server(made, "127.0.0.1", 0) as server:
            await follow(made, Management(fabric))
            host, _, port = server.place.rpartition(":")
            question = dns.message.make_query("_amqp._tcp.weft.test", "SRV")
            for ask_over in (dns.asyncquery.udp, dns.asyncquery.tcp):
                answer = await ask_over(question, host, timeout=30, port=int(port))
                assert [row.port for row in answer.answer[0]] == [node.ports[0]]
                assert str(answer.additional[0][0]) == "127.0.0.1"
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\0\3abc")
            assert await reader.read() == b"", "what is no question ends a connection"
            writer.close()
