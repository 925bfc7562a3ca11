"""Listening: the real address comes back, and what the machine refuses is one sentence."""

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from weft.model.errors import ConfigError, Unavailable
from weft.net.endpoint import Endpoint
from weft.net.listen import listen
from weft.net.tls import server_context


class Greeter(asyncio.Protocol):
    """Says one word and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


async def read_all(endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_port_zero_takes_a_free_port() -> None:
    listener = await listen(Endpoint("127.0.0.1", 0), Greeter)
    (endpoint,) = listener.endpoints
    assert endpoint.port != 0
    assert not listener.tls
    assert await read_all(endpoint) == b"hello"
    listener.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
async def test_ipv6() -> None:
    try:
        listener = await listen(Endpoint("::1", 0), Greeter)
    except Unavailable:
        pytest.skip("no IPv6 loopback on this machine")
    assert await read_all(listener.endpoints[0]) == b"hello"
    listener.close()


async def test_a_taken_port_is_one_sentence() -> None:
    first = await listen(Endpoint("127.0.0.1", 0), Greeter)
    with pytest.raises(Unavailable) as caught:
        await listen(first.endpoints[0], Greeter)
    assert str(caught.value) == f"cannot listen on {first.endpoints[0]}: address already in use"
    first.close()


async def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(Unavailable, match=r"^cannot listen on 192\.0\.2\.1:0: "):
        await listen(Endpoint("192.0.2.1", 0), Greeter)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


async def test_tls(certificate: tuple[Path, Path]) -> None:
    listener = await listen(Endpoint("127.0.0.1", 0), Greeter, server_context(*certificate))
    assert listener.tls
    client = ssl.create_default_context(cafile=str(certificate[0]))
    assert await read_all(listener.endpoints[0], client) == b"hello"
    listener.close()


def test_tls_files_at_fault_are_named(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.pem: no such file"):
        server_context(cert, tmp_path / "nowhere.pem")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("this is no certificate")
    with pytest.raises(ConfigError, match=r"garbage\.pem and .*key\.pem are not a certificate and its key"):
        server_context(garbage, key)
