"""Endpoints: what is read, what is refused, and that reading reverses writing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model.errors import ConfigError
from weft.net.endpoint import Endpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:5672", Endpoint("127.0.0.1", 5672)),
        ("localhost", Endpoint("localhost", 1)),
        ("broker.example:0", Endpoint("broker.example", 0)),
        ("[::1]:65535", Endpoint("::1", 65535)),
        ("[fe80::1%eth0]", Endpoint("fe80::1%eth0", 1)),
    ],
)
def test_reads(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text, 1) == endpoint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "host is missing"),
        (":5672", "host is missing"),
        ("a b:1", "host is missing"),
        ("host:", "port is a number"),
        ("host:amqp", "port is a number"),
        ("host:65536", "port is a number"),
        ("host:-1", "port is a number"),
        ("host:٣", "port is a number"),
        ("::1", "brackets: [::1]:7"),
        ("[::1", "both brackets"),
        ("[::1]5672", "both brackets"),
    ],
)
def test_refuses(text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text, 7)
    assert hint in str(caught.value)
    assert repr(text) in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        endpoint = parse_endpoint(text, 5672)
    except ConfigError:
        return
    assert parse_endpoint(str(endpoint), 1) == endpoint
