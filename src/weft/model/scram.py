"""SCRAM-SHA-256, what both sides share: its name, its limits, and the key that a password becomes.

Owns the preparation of passwords and the derivation of the key. Text comes in, bytes go out. It must never keep either,
and nothing here may import the rest of weft.
Rules: RFC 5802, section 2.2, and RFC 7677; passwords are prepared by RFC 4013 where they can be.
"""

from __future__ import annotations

import hashlib
import stringprep
import unicodedata

MECHANISM = "SCRAM-SHA-256"
ITERATIONS_MIN = 4_096
"""RFC 7677, section 4."""
ITERATIONS_MAX = 10_000_000
_PROHIBITED = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def derive_key(password: str | bytes, salt: bytes, iterations: int) -> bytes:
    """The key that proofs are made with; slow by intent, and without the interpreter's lock."""
    return hashlib.pbkdf2_hmac("sha256", _prepared(password), salt, iterations)


def prepare(text: str) -> str | None:
    """The text as SASLprep has it; None if it may not be prepared."""
    kept = (character for character in text if not stringprep.in_table_b1(character))
    spaced = "".join(" " if stringprep.in_table_c12(character) else character for character in kept)
    result = unicodedata.ucd_3_2_0.normalize("NFKC", spaced)
    if any(table(character) for character in result for table in _PROHIBITED):
        return None
    if any(map(stringprep.in_table_d1, result)):
        ends_right = stringprep.in_table_d1(result[0]) and stringprep.in_table_d1(result[-1])
        if not ends_right or any(map(stringprep.in_table_d2, result)):
            return None
    return result


def _prepared(password: str | bytes) -> bytes:
    """As a peer would prepare it; what cannot be prepared is taken as it is."""
    data = password.encode() if isinstance(password, str) else password
    try:
        prepared = prepare(data.decode())
    except UnicodeDecodeError:
        return data
    return data if prepared is None else prepared.encode()
