"""Passwords as salted, slow hashes.

Owns the encoding `scrypt$n$r$p$salt$hash` (salt and hash in base64) and the only two things done with it: make and
verify. Verifiers of SCRAM (`weft.policy.scram`) stand in the same place. Hashes that RabbitMQ made, `ALGORITHM$…` with
its own name of the algorithm, are verified too, never made.
A password comes in as text or bytes, a line that describes itself comes out, so that costs can be raised without a new
format.
It must never log, keep or compare a password in clear, and never run on the loop's thread: it is slow by intent.
Cost: n = 2^14, r = 8, p = 1 (RFC 7914 section 2): about 50 ms and 16 MiB.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from weft.model.errors import ConfigError
from weft.policy.scram import parse_verifier

COST_DEFAULT = 2**14
COST_MAX = 2**20
"""A gigabyte: beyond it a stored line is a mistake, or an attack on our memory."""
_BLOCKS = 8
_LANES = 1
_SALT_BYTES = 16
_HASH_BYTES = 32
RABBITMQ = {"rabbit_password_hashing_sha256": "sha256", "rabbit_password_hashing_sha512": "sha512"}
_RABBITMQ_SALT_BYTES = 4


def hash_password(password: str | bytes, cost: int = COST_DEFAULT) -> str:
    """The line to store for a password."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = _scrypt(password, salt, cost=cost, blocks=_BLOCKS, lanes=_LANES, length=_HASH_BYTES)
    return _encode(cost, salt, digest)


def decoy_hash(cost: int = COST_DEFAULT) -> str:
    """A line that no password fits: verifying against it takes as long as against a real one."""
    return _encode(cost, secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_HASH_BYTES))


def verify_password(password: str | bytes, encoded: str) -> bool:
    """Is it the password this line was made from?"""
    if foreign := _parse_rabbitmq(encoded):
        name, salt, expected = foreign
        data = password.encode() if isinstance(password, str) else password
        return hmac.compare_digest(hashlib.new(name, salt + data).digest(), expected)
    if verifier := parse_verifier(encoded):
        return verifier.fits(password)
    cost, blocks, lanes, salt, expected = parse_hash(encoded)
    actual = _scrypt(password, salt, cost=cost, blocks=blocks, lanes=lanes, length=len(expected))
    return hmac.compare_digest(actual, expected)


def check_hash(encoded: str) -> None:
    """ConfigError if this line is no password hash."""
    if _parse_rabbitmq(encoded) is None and parse_verifier(encoded) is None:
        parse_hash(encoded)


def _parse_rabbitmq(encoded: str) -> tuple[str, bytes, bytes] | None:
    """(digest's name, salt, hash) of a line that RabbitMQ made; None if it is another kind."""
    algorithm, _, text = encoded.partition("$")
    name = RABBITMQ.get(algorithm)
    if name is None:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ConfigError("a password hash of RabbitMQ's must be base64") from None
    if len(data) != _RABBITMQ_SALT_BYTES + hashlib.new(name).digest_size:
        raise ConfigError("a password hash of RabbitMQ's has a wrong length")
    return name, data[:_RABBITMQ_SALT_BYTES], data[_RABBITMQ_SALT_BYTES:]


def parse_hash(encoded: str) -> tuple[int, int, int, bytes, bytes]:
    """(n, r, p, salt, hash) of a stored line; ConfigError if it is none."""
    name, *fields = encoded.split("$")
    try:
        if name != "scrypt":
            raise ValueError
        cost, blocks, lanes = (int(field) for field in fields[:3])
        salt, digest = (base64.b64decode(field, validate=True) for field in fields[3:])
    except (ValueError, binascii.Error):
        raise ConfigError("a password hash must look like scrypt$n$r$p$salt$hash") from None
    if not (1 < cost <= COST_MAX and cost & (cost - 1) == 0 and 1 <= blocks <= 32 and 1 <= lanes <= 16):
        raise ConfigError(f"a password hash has parameters out of range: n={cost} r={blocks} p={lanes}")
    if not (8 <= len(salt) <= 64 and 16 <= len(digest) <= 64):
        raise ConfigError("a password hash has a salt or hash of a wrong length")
    return cost, blocks, lanes, salt, digest


def _scrypt(password: str | bytes, salt: bytes, *, cost: int, blocks: int, lanes: int, length: int) -> bytes:
    data = password.encode() if isinstance(password, str) else password
    memory_bytes = 128 * blocks * (cost + lanes + 2) + 65_536
    return hashlib.scrypt(data, salt=salt, n=cost, r=blocks, p=lanes, maxmem=memory_bytes, dklen=length)


def _encode(cost: int, salt: bytes, digest: bytes) -> str:
    return f"scrypt${cost}${_BLOCKS}${_LANES}${_text(salt)}${_text(digest)}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
