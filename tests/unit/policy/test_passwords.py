"""Password hashes describe themselves and fit one password only."""

from __future__ import annotations

import pytest

from weft.model.errors import ConfigError
from weft.policy.passwords import decoy_hash, hash_password, parse_hash, verify_password


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
