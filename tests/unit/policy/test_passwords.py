"""Password hashes describe themselves and fit one password only."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from weft.model.errors import ConfigError
from weft.policy.passwords import check_hash, decoy_hash, hash_password, parse_hash, verify_password


def test_a_hash_fits_its_password_only() -> None:
    line = hash_password("pässword", 16)
    assert line.startswith("scrypt$16$8$1$")
    assert verify_password("pässword", line)
    assert verify_password("pässword".encode(), line)
    assert not verify_password("password", line)
    assert not verify_password("", line)


def test_salts_differ() -> None:
    assert hash_password("a", 16) != hash_password("a", 16)


def test_the_default_cost_is_slow() -> None:
    line = hash_password("a")
    assert parse_hash(line)[:3] == (2**14, 8, 1)
    assert verify_password("a", line)


def test_a_decoy_is_a_hash_like_any_other() -> None:
    assert parse_hash(decoy_hash(16))[:3] == parse_hash(hash_password("a", 16))[:3]
    assert not verify_password("", decoy_hash(16))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "guest",
        "scrypt",
        "scrypt$16$8$1$AAAA",
        "md5$16$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAA==",
        "scrypt$x$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAA==",
        "scrypt$15$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAA==",
        "scrypt$1099511627776$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAA==",
        "scrypt$16$99$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAA==",
        "scrypt$16$8$1$AAAA$AAAAAAAAAAAAAAAAAAAAAA==",
        "scrypt$16$8$1$AAAAAAAAAAAAAAAAAAAAAA==$!!",
        "scrypt$16$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAA==$more",
    ],
)
def test_lines_that_are_no_hash_are_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="password hash"):
        verify_password("guest", line)


@pytest.mark.parametrize(("name", "digest"), [("sha256", hashlib.sha256), ("sha512", hashlib.sha512)])
def test_hashes_that_rabbitmq_made_are_verified(name: str, digest: Callable[[bytes], Any]) -> None:
    salt = b"\x90\x8d\xc6\x0a"
    line = f"rabbit_password_hashing_{name}$" + base64.b64encode(salt + digest(salt + b"test12").digest()).decode()
    check_hash(line)
    assert verify_password("test12", line)
    assert not verify_password("test13", line)


def test_the_hash_in_rabbitmqs_own_guide_is_verified() -> None:
    line = "rabbit_password_hashing_sha256$kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert verify_password("test12", line)


@pytest.mark.parametrize("text", ["", "!!", "AAAA", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR" * 2])
def test_what_rabbitmq_could_not_have_made_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        check_hash(f"rabbit_password_hashing_sha256${text}")
