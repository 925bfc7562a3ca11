"""TLS: the node's certificate is checked, and bytes of any size pass."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

import weft
from weft.config import Configuration, Listen
from weft.net.endpoint import Endpoint


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


async def test_messages_over_tls(certificate: tuple[Path, Path]) -> None:
    place = Listen(Endpoint("127.0.0.1", 0), *certificate)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    async with weft.Node(configuration=Configuration(listen=(place,))) as node:
        url = f"amqps://guest:guest@127.0.0.1:{node.ports[0]}"
        async with weft.connect(url, tls=trusting) as fabric:
            await fabric.send_many("tls", [bytes(size) for size in (0, 1, 70_000, 1_000_000)])
            async with fabric.receive("tls") as messages:
                assert [len((await anext(messages)).data) for _ in range(4)] == [0, 1, 70_000, 1_000_000]
        with pytest.raises(weft.Unavailable, match="certificate"):
            await weft.connect(url, timeout_s=1).open()
