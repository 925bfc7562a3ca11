"""Logging in: a password is proven where the node lets us, told where it does not, and never taken by a peer that lies.

Owns the client's SCRAM-SHA-256 against a node, and against a peer that only says it is one and speaks just enough SASL
to hear what it gets told. The exchange of the RFC is in `crates/client/src/scram.rs`.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from proton import UNDESCRIBED, Array, Data, Described, symbol, ubyte, ulong

import weft
from interop.raw10 import Raw10, encode, frame
from weft.client import core, sync
from weft.config import Configuration, Listen, Permission, Settings, User
from weft.model.scram import ITERATIONS_MIN
from weft.net.endpoint import Endpoint
from weft.policy.passwords import hash_password
from weft.policy.scram import make_verifier

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
PROVEN, TOLD = "SCRAM-SHA-256", "PLAIN"
OK, REFUSED = 0, 1


@asynccontextmanager
async def node_with(password_hash: str) -> AsyncIterator[weft.Node]:
    """A node that only alice may enter."""
    configuration = Configuration(
        listen=(Listen(Endpoint("127.0.0.1", 0)),),
        settings=Settings(guest=False, anonymous=False),
        users=(User("alice, queen", password_hash=password_hash),),
        permissions=(Permission("alice, queen", "/", ".*", ".*", ".*"),),
    )
    async with weft.Node(configuration=configuration) as node:
        yield node


def url(node: weft.Node, password: str = "wonder%20land", options: str = "") -> str:
    return f"amqp://alice%2C%20queen:{password}@127.0.0.1:{node.ports[0]}{options}"


def used(node: weft.Node) -> list[str]:
    """The mechanisms of those who are in."""
    return [peer.mechanism for _, peer in node.management.peers.items()]


async def test_a_password_is_proven_where_the_node_lets_us() -> None:
    async with node_with(make_verifier("wonder land", ITERATIONS_MIN).encode()) as node:
        async with weft.connect(url(node)) as fabric:
            assert used(node) == [PROVEN]
            await fabric.send("q", b"in")
        derived = core._key.cache_info().misses

        def look() -> list[str]:
            with sync.connect(url(node, options=f"?mechanism={PROVEN}")) as fabric:
                fabric.send("q", b"in again")
                return used(node)

        assert await asyncio.to_thread(look) == [PROVEN]
        assert core._key.cache_info().misses == derived, "the way back derives nothing anew"
        async with weft.connect(url(node, options=f"?mechanism={TOLD}")):
            assert used(node) == [TOLD]
        for mechanism in ("", f"?mechanism={PROVEN}"):
            with pytest.raises(weft.Refused, match="user or password are refused"):
                await weft.connect(url(node, "looking-glass", mechanism)).open()
        with pytest.raises(weft.Refused, match="user or password are refused"):
            await weft.connect(f"amqp://nobody:x@127.0.0.1:{node.ports[0]}").open()


async def test_it_is_told_where_the_node_has_no_verifiers() -> None:
    async with node_with(hash_password("wonder land", 16)) as node:
        async with weft.connect(url(node)):
            assert used(node) == [TOLD]
        with pytest.raises(weft.Refused, match="the peer takes PLAIN, ANONYMOUS, not SCRAM-SHA-256"):
            await weft.connect(url(node, options=f"?mechanism={PROVEN}")).open()


# peers that lie


class Stranger(Raw10):
    """The other end of a connection that was accepted, past the headers of SASL."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.settimeout(10)
        self.socket, self._unread = accepted, b""
        assert self.read_bytes(8) == SASL_HEADER
        self.send(SASL_HEADER)

    def say(self, code: int, *fields: object) -> None:
        self.send(frame(0, encode(Described(ulong(code), list(fields))), kind=1))

    def offer(self, *names: str) -> list[object]:
        """What the peer takes of it, and its first response."""
        self.say(MECHANISMS, Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, names)))
        got = self.read()
        assert got is not None
        assert got.code == INIT
        return got.fields

    def hear(self) -> bytes | None:
        """A response; None if the peer has hung up."""
        got = self.read()
        return None if got is None else bytes(got.fields[0])


@contextmanager
def stranger(act: Callable[[Stranger], None]) -> Iterator[str]:
    """Who does this with one connection; the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                act(Stranger(accepted))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"amqp://alice:secret@127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)
        assert not thread.is_alive()


def challenge(peer: Stranger) -> None:
    first = bytes(peer.offer(TOLD, PROVEN)[1])  # type: ignore[call-overload]
    nonce = first.rpartition(b"r=")[2]
    salt = base64.b64encode(b"salt of the liar")
    peer.say(CHALLENGE, b"r=%sAnd-mine,s=%s,i=%d" % (nonce, salt, ITERATIONS_MIN))
    proof = peer.hear()
    assert proof is not None
    assert b"secret" not in first + proof


def lets_in_at_once(peer: Stranger) -> None:
    peer.say(OUTCOME, ubyte(OK))


def lets_in_without_asking(peer: Stranger) -> None:
    peer.offer(PROVEN)
    peer.say(OUTCOME, ubyte(OK))
    assert peer.hear() is None


def lets_in_without_a_proof(peer: Stranger) -> None:
    challenge(peer)
    peer.say(OUTCOME, ubyte(OK))
    assert peer.read() is None


def lets_in_with_a_false_proof(peer: Stranger) -> None:
    challenge(peer)
    peer.say(OUTCOME, ubyte(OK), b"v=" + base64.b64encode(bytes(32)))
    assert peer.read() is None


def proves_falsely(peer: Stranger) -> None:
    challenge(peer)
    peer.say(CHALLENGE, b"v=" + base64.b64encode(bytes(32)))
    assert peer.hear() is None


def asks_for_too_much(peer: Stranger) -> None:
    first = bytes(peer.offer(PROVEN)[1])  # type: ignore[call-overload]
    peer.say(CHALLENGE, b"r=%sx,s=c2FsdA==,i=2000000000" % first.rpartition(b"r=")[2])
    assert peer.hear() is None


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lets_in_at_once, "not begun"),
        (lets_in_without_asking, "without a proof"),
        (lets_in_without_a_proof, "without a proof"),
        (lets_in_with_a_false_proof, "does not know the password"),
        (proves_falsely, "does not know the password"),
        (asks_for_too_much, "iterations"),
    ],
)
async def test_a_peer_that_lies_gets_neither_password_nor_messages(act: Callable[[Stranger], None], told: str) -> None:
    with stranger(act) as place, pytest.raises(weft.Refused, match=told):
        await weft.connect(place, timeout_s=5).open()


async def test_the_best_that_is_offered_is_taken() -> None:
    taken = []

    def act(peer: Stranger) -> None:
        taken.append(str(peer.offer("ANONYMOUS", TOLD, PROVEN)[0]))
        peer.say(OUTCOME, ubyte(REFUSED))

    with stranger(act) as place, pytest.raises(weft.Refused):
        await weft.connect(place).open()
    assert taken == [PROVEN]
