"""SASL mechanisms: the bytes of a response as credentials.

Owns the parsing of PLAIN (RFC 4616) and AMQPLAIN (a 0-9-1 field table with LOGIN and PASSWORD).
Bytes of a peer that is still a stranger come in; a name and a password come out, or None for whatever is malformed.
It must not look anything up, and must end quickly on any input.
ANONYMOUS and EXTERNAL carry no secret: the policy decides them from what it knows of the connection; SCRAM is an
exchange of its own (`weft.policy.scram`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

NAME_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 4_096
"""Room for tokens; a hash of more would only be work for us."""


class Credentials(NamedTuple):
    """What a peer says it is, and how it would prove it."""

    user: str
    password: bytes


def parse_plain(response: bytes) -> Credentials | None:
    """`authorization NUL name NUL password`; who else the peer would like to be is ignored, as RabbitMQ does."""
    fields = response.split(b"\0")
    return _credentials(fields[1], fields[2]) if len(fields) == 3 else None


def parse_amqplain(response: bytes) -> Credentials | None:
    """The body of a field table, without its length."""
    fields: dict[bytes, bytes] = {}
    position = 0
    while position < len(response):
        name_end = position + 1 + response[position]
        value_start = name_end + 5
        if response[name_end : name_end + 1] != b"S" or value_start > len(response):
            return None
        value_end = value_start + int.from_bytes(response[name_end + 1 : value_start])
        if value_end > len(response):
            return None
        fields[response[position + 1 : name_end]] = response[value_start:value_end]
        position = value_end
    if b"LOGIN" not in fields or b"PASSWORD" not in fields:
        return None
    return _credentials(fields[b"LOGIN"], fields[b"PASSWORD"])


def _credentials(user: bytes, password: bytes) -> Credentials | None:
    if not 0 < len(user) <= NAME_BYTES_MAX or len(password) > PASSWORD_BYTES_MAX:
        return None
    try:
        return Credentials(user.decode(), password)
    except UnicodeDecodeError:
        return None


WITH_PASSWORD: dict[str, Callable[[bytes], Credentials | None]] = {"PLAIN": parse_plain, "AMQPLAIN": parse_amqplain}
