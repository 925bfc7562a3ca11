"""SCRAM-SHA-256: the RFC's own exchange, a client written from it, and peers that lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from weft.model.changes import Accept, Challenge, Change, Refuse, SetMechanisms
from weft.model.errors import ConfigError
from weft.model.events import AuthRequested
from weft.model.scram import ITERATIONS_MIN, MECHANISM, prepare
from weft.policy import Policy, PolicySettings, scram
from weft.policy.passwords import check_hash, hash_password, verify_password
from weft.policy.policy import MECHANISMS
from weft.store import Store

CHEAP = PolicySettings(hash_cost=16, scram=True, scram_iterations=ITERATIONS_MIN)
CONN = 7
WAIT_S = 30.0


def proof_of(password: bytes, challenge: bytes, first_bare: bytes) -> tuple[bytes, bytes]:
    """A client's last message and the proof it expects in return, written from RFC 5802, section 3."""
    fields = dict(field.split(b"=", 1) for field in challenge.split(b","))
    salted = hashlib.pbkdf2_hmac("sha256", password, base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    last = b"c=biws,r=" + fields[b"r"]
    spoken = b",".join([first_bare, challenge, last])
    signature = hmac.digest(hashlib.sha256(client_key).digest(), spoken, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), spoken, "sha256")
    return last + b",p=" + base64.b64encode(proof), b"v=" + base64.b64encode(server)


class Door:
    """A policy with one connection, and a mailbox for what it answers later."""

    wire: Literal["0-9-1", "1.0"] = "1.0"

    def __init__(self, settings: PolicySettings = CHEAP, *, store: Store | None = None, local: bool = True) -> None:
        self.later: queue.Queue[Sequence[Change]] = queue.Queue()
        self.policy = Policy(store or Store(), settings, submit=self.later.put)
        self.policy.connection_opened(CONN, local=local)
        self.steps = 0

    def say(self, response: bytes, mechanism: str = MECHANISM) -> Sequence[Change]:
        event = AuthRequested(self.steps, CONN, self.wire, mechanism, response, self.steps)
        self.steps += 1
        return self.policy.on_events([event], 0)

    def challenge(self, response: bytes) -> bytes:
        (answer,) = self.say(response)
        assert isinstance(answer, Challenge), answer
        return answer.data

    def login(self, user: bytes, password: bytes) -> Sequence[Change]:
        bare = b"n=" + user + b",r=nonce"
        last, expected = proof_of(password, self.challenge(b"n,," + bare), bare)
        answers = self.say(last)
        if isinstance(answers[0], Refuse):
            return answers
        if self.wire == "1.0":
            assert answers == [Accept(self.steps - 1, proof=expected)]
            return [Accept(self.steps - 1)]
        assert answers == [Challenge(self.steps - 1, expected)]
        return self.say(b"")


def test_the_exchange_in_the_rfc() -> None:
    """RFC 7677, section 3."""
    salt = "W22ZaJ0SNY7soEsUEjb6gQ=="
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode(salt), 4096)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    first = scram.parse_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first is not None
    verifier = scram.Verifier(4096, base64.b64decode(salt), stored_key, server_key)
    exchange = scram.Exchange(first, verifier, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert exchange.challenge == f"r={nonce},s={salt},i=4096".encode()
    last = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.judge(last.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_verifier_is_a_password_hash_like_any_other() -> None:
    line = scram.make_verifier("secret", ITERATIONS_MIN).encode()
    check_hash(line)
    assert verify_password("secret", line)
    assert verify_password(b"secret", line)
    assert not verify_password("Secret", line)
    assert scram.parse_verifier(hash_password("secret", 16)) is None
    parsed = scram.parse_verifier(line)
    assert parsed is not None
    assert parsed.encode() == line


@pytest.mark.parametrize(
    "line",
    [
        "scram-sha-256",
        "scram-sha-256$4096$AAAA",
        "scram-sha-256$x$AAAAAAAAAAAAAAAA$AAAA$AAAA",
        "scram-sha-256$4096$AAAAAAAAAAAAAAAA$AAAA$AAAA",
        "scram-sha-256$4095$AAAAAAAAAAAAAAAA$" + "A" * 43 + "=$" + "A" * 43 + "=",
        "scram-sha-256$99999999$AAAAAAAAAAAAAAAA$" + "A" * 43 + "=$" + "A" * 43 + "=",
        "scram-sha-256$4096$AAAAAAAAAAAAAAAA$" + "A" * 43 + "=$!",
    ],
)
def test_a_broken_verifier_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="verifier"):
        check_hash(line)


def test_passwords_are_prepared_as_clients_do() -> None:
    assert prepare("I\u00adX") == "IX"
    assert prepare("\u00aa") == "a"
    assert prepare("\u2168") == "IX"
    assert prepare("a\u00a0b") == "a b"
    assert prepare("\u0007") is None
    assert prepare("\u0627\u0031") is None
    line = scram.make_verifier("\u2168", ITERATIONS_MIN).encode()
    assert verify_password("IX", line)
    assert verify_password(b"\xff\x00", scram.make_verifier(b"\xff\x00", ITERATIONS_MIN).encode())


@pytest.mark.parametrize("wire", ["0-9-1", "1.0"])
def test_who_proves_the_password_enters(wire: Literal["0-9-1", "1.0"]) -> None:
    """The node's proof goes with the outcome, or where the protocol has none as a challenge before it."""
    door = Door()
    door.wire = wire
    door.policy.add_user("a,b=c", "secret")
    assert door.login(b"a=2Cb=3Dc", b"secret") == [Accept(2 if wire == "0-9-1" else 1)]
    assert door.policy.user_of(CONN) == "a,b=c"


def test_an_empty_first_response_is_asked_for() -> None:
    door = Door()
    assert door.challenge(b"") == b""
    assert door.login(b"guest", b"guest") == [Accept(2)]


@pytest.mark.parametrize(("user", "password"), [(b"guest", b"wrong"), (b"nobody", b"guest")])
def test_who_does_not_is_refused(user: bytes, password: bytes) -> None:
    door = Door()
    (answer,) = door.login(user, password)
    assert isinstance(answer, Refuse)
    assert answer.code == 403
    assert door.policy.user_of(CONN) is None


def test_a_name_that_is_not_there_looks_like_one_that_is() -> None:
    """Its salt stays the same, and its iterations are those that verifiers have."""
    door = Door(PolicySettings(hash_cost=16))
    told = []
    for name in (b"nobody", b"nobody", b"nobody else"):
        door.steps, door.policy._peers[CONN].exchange = 0, None
        told.append(door.challenge(b"n,,n=" + name + b",r=x").split(b",")[1:])
    assert told[0] == told[1] != told[2]
    assert told[0][1] == b"i=%d" % scram.ITERATIONS_DEFAULT


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=guest,r=x",
        b"n,a=other,n=guest,r=x",
        b"n,,m=ext,n=guest,r=x",
        b"n,,n=guest",
        b"n,,n=guest,r=",
        b"n,,n=gu=est,r=x",
        b"n,,n=guest,x=y",
        b"\xff",
        b"n,,n=" + b"x" * 2000 + b",r=x",
    ],
)
def test_a_malformed_beginning_is_refused(first: bytes) -> None:
    (answer,) = Door().say(first)
    assert isinstance(answer, Refuse)


@pytest.mark.parametrize(
    "change",
    [
        lambda last: last.replace(b"c=biws", b"c=eSws"),
        lambda last: last.replace(b"r=nonce", b"r=other"),
        lambda last: last[:-4],
        lambda last: last.partition(b",p=")[0],
        lambda _last: b"",
        lambda last: last.rpartition(b",p=")[0] + b",p=!",
    ],
)
def test_a_malformed_proof_is_refused(change: object) -> None:
    door = Door()
    challenge = door.challenge(b"n,,n=guest,r=nonce")
    last, _ = proof_of(b"guest", challenge, b"n=guest,r=nonce")
    (answer,) = door.say(change(last))  # type: ignore[operator]
    assert isinstance(answer, Refuse)


def test_an_exchange_cannot_be_gone_on_with_after_it_ended() -> None:
    door = Door()
    challenge = door.challenge(b"n,,n=guest,r=nonce")
    last, _ = proof_of(b"guest", challenge, b"n=guest,r=nonce")
    door.say(b"nonsense")
    (answer,) = door.say(last)
    assert isinstance(answer, Refuse)
    (answer,) = door.say(b"")
    assert isinstance(answer, Refuse)


def test_guest_proves_itself_from_this_machine_only() -> None:
    (answer,) = Door(local=False).say(b"n,,n=guest,r=x")
    assert isinstance(answer, Refuse)


def test_it_is_offered_only_when_everyone_with_a_password_can_use_it() -> None:
    door = Door()
    best = SetMechanisms((MECHANISM, *MECHANISMS))
    assert door.policy.start() == [best]
    assert door.policy.add_user("certified") == []
    assert door.policy.add_user("old", password_hash=hash_password("x", 16)) == [SetMechanisms(MECHANISMS)]
    assert door.policy.add_user("new", "y") == []
    assert door.policy.change_password("old", "z") == [best]
    assert door.policy.add_user("old", password_hash=hash_password("x", 16)) == [SetMechanisms(MECHANISMS)]
    assert door.policy.delete_user("old") == [best]
    assert Door(PolicySettings(hash_cost=16)).policy.start() == [SetMechanisms(MECHANISMS)]


def test_a_login_that_tells_the_password_makes_a_verifier() -> None:
    store = Store()
    before = Door(PolicySettings(hash_cost=16), store=store)
    before.policy.add_user("old", "secret")
    before.policy.close()
    door = Door(store=store)
    assert door.policy.start() == [SetMechanisms(MECHANISMS)]
    assert door.say(b"\0old\0secret", "PLAIN") == []
    assert door.later.get(timeout=WAIT_S) == [Accept(0)]
    door.policy.close()  # waits for the worker's last task
    changes = door.policy.on_events([], 0)
    assert changes == [SetMechanisms((MECHANISM, *MECHANISMS))]
    (stored,) = [user.password_hash for user in store.users() if user.name == "old"]
    assert verify_password("secret", stored or "")
    again = Door(store=store)
    assert again.login(b"old", b"secret") == [Accept(1)]


def test_a_password_changed_meanwhile_stays_changed() -> None:
    store = Store()
    before = Door(PolicySettings(hash_cost=16), store=store)
    before.policy.add_user("old", "secret")
    door = Door(store=store)
    door.say(b"\0old\0secret", "PLAIN")
    door.later.get(timeout=WAIT_S)
    door.policy.close()
    door.policy.change_password("old", password_hash=hash_password("other", 16))
    door.policy.on_events([], 0)
    (stored,) = [user.password_hash for user in store.users() if user.name == "old"]
    assert verify_password("other", stored or "")


def test_guest_of_an_older_node_gets_a_verifier_unless_its_password_was_changed(tmp_path: Path) -> None:
    for password, offered in (("guest", (MECHANISM, *MECHANISMS)), ("other", MECHANISMS)):
        store = Store(tmp_path / password)
        Door(PolicySettings(hash_cost=16), store=store).policy.change_password("guest", password)
        store.close()
        assert Door(store=Store(tmp_path / password)).policy.start() == [SetMechanisms(offered)]
