"""Responses of strangers are credentials or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.policy.mechanisms import Credentials, parse_amqplain, parse_plain


def field(name: bytes, value: bytes, kind: bytes = b"S") -> bytes:
    return bytes([len(name)]) + name + kind + len(value).to_bytes(4) + value


LOGIN = field(b"LOGIN", b"ada")
PASSWORD = field(b"PASSWORD", b"pw\0\xff")


def test_plain() -> None:
    assert parse_plain(b"\0ada\0pw") == Credentials("ada", b"pw")
    assert parse_plain(b"someone\0ada\0") == Credentials("ada", b"")


@pytest.mark.parametrize(
    "response",
    [b"", b"ada", b"\0ada", b"\0\0pw", b"\0a\0b\0c", b"\0\xff\0pw", b"\0" + b"a" * 256 + b"\0", b"\0a\0" + b"b" * 5000],
)
def test_plain_malformed(response: bytes) -> None:
    assert parse_plain(response) is None


def test_amqplain() -> None:
    assert parse_amqplain(LOGIN + PASSWORD) == Credentials("ada", b"pw\0\xff")
    assert parse_amqplain(field(b"x", b"y") + PASSWORD + LOGIN) == Credentials("ada", b"pw\0\xff")


@pytest.mark.parametrize(
    "response",
    [
        b"",
        LOGIN,
        PASSWORD,
        (LOGIN + PASSWORD)[:-1],
        LOGIN + PASSWORD[:-8],
        LOGIN + b"\xff",
        field(b"LOGIN", b"ada", b"t") + PASSWORD,
        b"\x05LOGINS\xff\xff\xff\xffada",
        b"\x00S",
    ],
)
def test_amqplain_malformed(response: bytes) -> None:
    assert parse_amqplain(response) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_calmly(response: bytes) -> None:
    for parse in (parse_plain, parse_amqplain):
        found = parse(response)
        assert found is None or found.user
