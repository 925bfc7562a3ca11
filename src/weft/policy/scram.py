"""SCRAM-SHA-256: a peer proves that it knows a password without sending it.

Owns verifiers, lines `scram-sha-256$iterations$salt$stored-key$server-key` that take the place of a password hash, and
the server's side of an exchange.
A peer's messages come in, challenges go out, and at the end whether it has proven itself.
It must never keep a password, and must answer for a user that is not there as it does for one that is.
Rules: RFC 5802 and RFC 7677, without channel binding; what a password becomes is in `weft.model.scram`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import NamedTuple

from weft.model.errors import ConfigError
from weft.model.scram import ITERATIONS_MAX, ITERATIONS_MIN, derive_key

PREFIX = "scram-sha-256"
ITERATIONS_DEFAULT = 600_000
"""What OWASP's password storage sheet asks of PBKDF2 with SHA-256; the peer does them, some 0.2 s for each login."""
MESSAGE_BYTES_MAX = 1_024
_SALT_BYTES = 16
_NONCE_BYTES = 18
_HASH_BYTES = 32


class Verifier(NamedTuple):
    """What a server keeps of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def encode(self) -> str:
        """The line to store."""
        return f"{PREFIX}${self.iterations}${_text(self.salt)}${_text(self.stored_key)}${_text(self.server_key)}"

    def fits(self, password: str | bytes) -> bool:
        """Is it the verifier of this password? Slow by intent."""
        return hmac.compare_digest(_derive(password, self.salt, self.iterations)[0], self.stored_key)


def make_verifier(password: str | bytes, iterations: int = ITERATIONS_DEFAULT) -> Verifier:
    """A verifier with a new salt; slow by intent."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return Verifier(iterations, salt, *_derive(password, salt, iterations))


def parse_verifier(encoded: str) -> Verifier | None:
    """The verifier in a stored line; None if it is another kind of hash, ConfigError if it is a broken one."""
    name, *fields = encoded.split("$")
    if name != PREFIX:
        return None
    try:
        iterations = int(fields[0])
        salt, stored_key, server_key = (base64.b64decode(field, validate=True) for field in fields[1:])
    except (ValueError, IndexError, binascii.Error):
        raise ConfigError(f"a verifier must look like {PREFIX}$iterations$salt$stored-key$server-key") from None
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ConfigError(f"a verifier must have {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, not {iterations}")
    if not 8 <= len(salt) <= 64 or {len(stored_key), len(server_key)} != {_HASH_BYTES}:
        raise ConfigError("a verifier has a salt or key of a wrong length")
    return Verifier(iterations, salt, stored_key, server_key)


class First(NamedTuple):
    """A peer's first message: who it says it is, and what the rest of the exchange is about."""

    user: str
    nonce: str
    header: str
    bare: str


def parse_first(message: bytes) -> First | None:
    """None if it is malformed, or asks for channel binding or for another identity."""
    text = _decode(message)
    flag, _, rest = text.partition(",")
    authzid, _, bare = rest.partition(",")
    fields = bare.split(",")
    if flag not in ("n", "y") or authzid or len(fields) < 2 or not fields[0].startswith("n="):
        return None
    name, nonce = fields[0][2:], fields[1].removeprefix("r=")
    if not fields[1].startswith("r=") or not nonce or "=" in name.replace("=2C", "").replace("=3D", ""):
        return None
    return First(name.replace("=2C", ",").replace("=3D", "="), nonce, f"{flag},,", bare)


class Exchange:
    """The server's side of one login, after the peer's first message."""

    def __init__(self, first: First, verifier: Verifier, nonce: str | None = None) -> None:
        self.user = first.user
        self._verifier = verifier
        self._header = first.header
        self._nonce = first.nonce + (nonce or _text(secrets.token_bytes(_NONCE_BYTES)))
        challenge = f"r={self._nonce},s={_text(verifier.salt)},i={verifier.iterations}"
        self._spoken = f"{first.bare},{challenge}"
        self.challenge = challenge.encode()

    def judge(self, message: bytes) -> bytes | None:
        """The peer's proof comes in; the server's comes out, or None if that was no proof."""
        without_proof, comma, proof_text = _decode(message).rpartition(",p=")
        fields = without_proof.split(",")
        if not comma or fields[:2] != [f"c={_text(self._header.encode())}", f"r={self._nonce}"]:
            return None
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except (ValueError, binascii.Error):
            return None
        spoken = f"{self._spoken},{without_proof}".encode()
        signature = hmac.digest(self._verifier.stored_key, spoken, "sha256")
        if len(proof) != len(signature):
            return None
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._verifier.server_key, spoken, "sha256"))


def decoy(user: str, key: bytes) -> Verifier:
    """A verifier that nothing fits, always the same one for a name."""
    salt = hmac.digest(key, user.encode(errors="surrogatepass"), "sha256")[:_SALT_BYTES]
    return Verifier(ITERATIONS_DEFAULT, salt, secrets.token_bytes(_HASH_BYTES), secrets.token_bytes(_HASH_BYTES))


def _derive(password: str | bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """(stored key, server key)."""
    salted = derive_key(password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256")


def _decode(message: bytes) -> str:
    """Text of a message; empty, and so malformed, if it is too long or none."""
    try:
        return message.decode() if len(message) <= MESSAGE_BYTES_MAX else ""
    except UnicodeDecodeError:
        return ""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
