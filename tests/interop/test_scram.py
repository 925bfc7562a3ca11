"""SCRAM-SHA-256 by the byte, over both protocols, on a node whose users all have verifiers.

Owns a client of RFC 5802 written from the RFC and run over AMQP 0-9-1's secure and AMQP 1.0's SASL frames. A real
client of it is in `test_qpid_jms.py`: Proton is built without Cyrus SASL, as a wheel and by Debian, and pika knows no
challenge. It must not know how the node keeps a password.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pika import spec
from proton import Described, symbol, ulong

from peers import Peer, start_weft
from weft.model.scram import ITERATIONS_MIN
from weft.policy import scram

from .raw091 import CAPABILITIES, PROTOCOL_HEADER, RawConnection
from .raw10 import Raw10, encode, frame

pytestmark = pytest.mark.weft_only

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
FIRST = b"n,,n=alice,r=nonce"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("scram")
    verifier = scram.make_verifier("wonderland", ITERATIONS_MIN).encode()
    config: Path = folder / "weft.toml"
    config.write_text(
        f"""
[settings]
guest = false
anonymous = false
[[users]]
name = "alice"
password_hash = "{verifier}"
[[permissions]]
user = "alice"
configure = ".*"
write = ".*"
read = ".*"
"""
    )
    peer = start_weft(folder / "data", "--config", str(config))
    yield peer
    peer.stop()


def last_message(challenge: bytes, password: bytes = b"wonderland") -> tuple[bytes, bytes]:
    """The client's proof, and the one it wants to see."""
    fields = dict(field.split(b"=", 1) for field in challenge.split(b","))
    salted = hashlib.pbkdf2_hmac("sha256", password, base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = b"c=biws,r=" + fields[b"r"]
    spoken = b",".join([FIRST[3:], challenge, without_proof])
    signature = hmac.digest(hashlib.sha256(client_key).digest(), spoken, "sha256")
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), spoken, "sha256")
    return without_proof + b",p=" + base64.b64encode(proof), b"v=" + base64.b64encode(expected)


def start_091(peer: RawConnection) -> bytes:
    """Begins a login by SCRAM; the challenge."""
    peer.send(PROTOCOL_HEADER)
    start = peer.expect(spec.Connection.Start, 0)
    assert as_bytes(start.mechanisms).split()[0] == b"SCRAM-SHA-256"
    properties = {"capabilities": CAPABILITIES}
    peer.call(0, spec.Connection.StartOk(properties, "SCRAM-SHA-256", FIRST.decode(), "en_US"))
    return as_bytes(peer.expect(spec.Connection.Secure, 0).challenge)


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def test_amqp_0_9_1(node: Peer) -> None:
    with RawConnection(node.host, node.port) as peer:
        proof, expected = last_message(start_091(peer))
        peer.call(0, spec.Connection.SecureOk(proof.decode()))
        assert as_bytes(peer.expect(spec.Connection.Secure, 0).challenge) == expected
        peer.call(0, spec.Connection.SecureOk(""))
        tune = peer.expect(spec.Connection.Tune, 0)
        peer.call(0, spec.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        peer.call(0, spec.Connection.Open("/"))
        peer.expect(spec.Connection.OpenOk, 0)


def test_amqp_0_9_1_with_a_wrong_password(node: Peer) -> None:
    with RawConnection(node.host, node.port) as peer:
        proof, _ = last_message(start_091(peer), b"looking glass")
        peer.call(0, spec.Connection.SecureOk(proof.decode()))
        assert peer.expect(spec.Connection.Close, 0).reply_code == 403


class Sasl:
    """SASL frames over a bare peer."""

    def __init__(self, peer: Raw10) -> None:
        self.peer = peer
        peer.send(SASL_HEADER)
        assert peer.read_bytes(8) == SASL_HEADER

    def say(self, code: int, *fields: Any) -> None:
        self.peer.send(frame(0, encode(Described(ulong(code), list(fields))), kind=1))

    def hear(self, code: int) -> list[Any]:
        got = self.peer.read()
        assert got is not None
        assert got.code == code, got
        return got.fields

    def start(self) -> bytes:
        offered = self.hear(MECHANISMS)[0]
        names = [str(name) for name in (offered.elements if hasattr(offered, "elements") else [offered])]
        assert names == ["SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]
        self.say(INIT, symbol("SCRAM-SHA-256"), FIRST)
        return bytes(self.hear(CHALLENGE)[0])


def test_amqp_1_0(node: Peer) -> None:
    with Raw10(node.host, node.port) as peer:
        sasl = Sasl(peer)
        proof, expected = last_message(sasl.start())
        sasl.say(RESPONSE, proof)
        code, additional_data = sasl.hear(OUTCOME)
        assert (int(code), bytes(additional_data)) == (0, expected)
        peer.open()


def test_amqp_1_0_with_a_wrong_password(node: Peer) -> None:
    with Raw10(node.host, node.port) as peer:
        sasl = Sasl(peer)
        sasl.say(RESPONSE, last_message(sasl.start(), b"looking glass")[0])
        assert int(sasl.hear(OUTCOME)[0]) == 1
        assert peer.read() is None


def test_a_client_that_tells_its_password_still_may(node: Peer) -> None:
    with Raw10(node.host, node.port) as peer:
        sasl = Sasl(peer)
        sasl.hear(MECHANISMS)
        sasl.say(INIT, symbol("PLAIN"), b"\0alice\0wonderland")
        assert int(sasl.hear(OUTCOME)[0]) == 0
        peer.open()
