"""Names: made by the server, reserved by it, or too long for it.

Owns the rules about names that hold whatever the thing is that bears them.
Text comes in, text or a refusal goes out.
It must not know what exists.
Rule: AMQP 0-9-1 reserves names that begin with `amq.`; a name is a short string, so it has at most 255 bytes.
"""

from __future__ import annotations

import hashlib
import secrets

from weft.model.errors import Refused
from weft.model.names import NAME_BYTES_MAX

RESERVED_PREFIX = "amq."
MADE_PREFIX = "amq.gen-"
"""Of the names that a node makes itself, and RabbitMQ, too."""
REPLY_TO = "amq.rabbitmq.reply-to"
"""The pseudo-queue of direct reply-to; the kernel serves it."""
MANAGEMENT = "$management"
"""Where the node itself takes requests, in every virtual host."""


def make_name() -> str:
    """A name for a queue whose maker does not care: 128 random bits, so nobody guesses it."""
    return f"{MADE_PREFIX}{secrets.token_urlsafe(16)}"


def is_reply_to(name: str) -> bool:
    """Is this the pseudo-queue, or the name of one peer's end of it?"""
    return name == REPLY_TO or name.startswith(REPLY_TO + ".")


def check_new_name(kind: str, name: str, *, restored: bool = False) -> None:
    """Refuse a name that a peer may not give to something new; what is `restored` may have one that a node made."""
    if name.startswith(RESERVED_PREFIX) and not (restored and name.startswith(MADE_PREFIX)):
        raise Refused(f"ACCESS_REFUSED - {kind} name '{name}' contains reserved prefix 'amq.*'", 403)
    if name == MANAGEMENT:
        raise Refused(f"ACCESS_REFUSED - {kind} name '{name}' is the node's own", 403)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise Refused(f"PRECONDITION_FAILED - {kind} name may have at most {NAME_BYTES_MAX} bytes", 406)


def bounded_name(name: str) -> str:
    """The name itself, or if it is too long its beginning with a fingerprint: the same every time."""
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    fingerprint = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name.encode()[:200].decode(errors='ignore')}-{fingerprint}"
