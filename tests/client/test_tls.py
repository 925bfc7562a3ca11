"""TLS: the node's certificate is checked, and bytes of any size pass."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

import weft
from weft.client import Message
from weft.client.pool import Pool
from weft.config import Configuration, Listen, Permission, Settings, User
from weft.model.errors import ConfigError
from weft.net.endpoint import Endpoint
from weft.net.resumption import is_resumed, remember
from weft.node.dialer import Outgoing


class Authority:
    """Signs certificates, each with its key in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate, self._key = self._make("authority", "-x509", "-days", "2")

    def sign(self, name: str, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """(certificate, key) of a name, that is also `localhost` and an address."""
        request, key = self._make(name)
        certificate = self._folder / f"{name}.signed.pem"
        extensions = self._folder / "extensions"
        extensions.write_text(f"subjectAltName=DNS:localhost,IP:{address}")
        signing = ["-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial"]
        files = ["-in", str(request), "-out", str(certificate), "-extfile", str(extensions)]
        _openssl("x509", "-req", "-days", "2", *signing, *files)
        return certificate, key

    def _make(self, name: str, *options: str) -> tuple[Path, Path]:
        made, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl("req", *kind, "-subj", f"/O=Lab/CN={name}", *options, "-keyout", str(key), "-out", str(made))
        return made, key

    def expire(self, certificate: Path) -> None:
        """Sign it again, so that it ended an hour ago."""
        old = x509.load_pem_x509_certificate(certificate.read_bytes())
        key = serialization.load_pem_private_key(self._key.read_bytes(), None)
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number)
        made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now - timedelta(hours=1))
        for extension in old.extensions:
            made = made.add_extension(extension.value, extension.critical)
        signed = made.sign(key, hashes.SHA256())  # type: ignore[arg-type]
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def trusting(self, *own: Path) -> ssl.SSLContext:
        """The context of a client that trusts it, and shows a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if own:
            context.load_cert_chain(*own)
        return context


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("node")


async def test_messages_over_tls(authority: Authority, certificate: tuple[Path, Path]) -> None:
    place = Listen(Endpoint("127.0.0.1", 0), *certificate)
    async with weft.Node(configuration=Configuration(listen=(place,))) as node:
        url = f"amqps://guest:guest@127.0.0.1:{node.ports[0]}"
        async with weft.connect(url, tls=authority.trusting()) as fabric:
            await fabric.send_many("tls", [bytes(size) for size in (0, 1, 70_000, 1_000_000)])
            async with fabric.receive("tls") as messages:
                assert [len((await anext(messages)).data) for _ in range(4)] == [0, 1, 70_000, 1_000_000]
        with pytest.raises(weft.Unavailable, match="certificate"):
            await weft.connect(url, timeout_s=3).open()
        with pytest.raises(weft.Refused):  # this listener asks nobody for a certificate
            await weft.connect(f"{url}?mechanism=EXTERNAL", tls=authority.trusting(*certificate)).open()


async def test_a_certificate_is_a_login(
    authority: Authority, stranger: Authority, certificate: tuple[Path, Path]
) -> None:
    place = Listen(Endpoint("127.0.0.1", 0), *certificate, authority.certificate)
    known = User("ada", "unknown to whoever has the certificate")
    may = Permission("ada", configure=".*", write=".*", read=".*")
    async with weft.Node(configuration=Configuration(listen=(place,), users=(known,), permissions=(may,))) as node:
        url = f"amqps://127.0.0.1:{node.ports[0]}?mechanism=EXTERNAL"
        async with weft.connect(url, tls=authority.trusting(*authority.sign("ada"))) as fabric:
            await fabric.send("tls", "by certificate")
            assert [row["user"] for row in node.snapshot()["connections"]] == ["ada"]
        with pytest.raises(weft.Refused):  # well signed, but not a user
            await weft.connect(url, tls=authority.trusting(*authority.sign("eve"))).open()
        with pytest.raises(weft.Refused):  # no certificate, so nobody
            await weft.connect(url, tls=authority.trusting()).open()
        with pytest.raises(weft.Unavailable):  # signed by somebody else
            await weft.connect(url, tls=authority.trusting(*stranger.sign("ada")), timeout_s=2).open()
        async with weft.connect(f"amqps://guest:guest@127.0.0.1:{node.ports[0]}", tls=authority.trusting()) as fabric:
            await fabric.send("tls", "by password")


async def test_every_way_to_log_in_over_tls_1_3(authority: Authority, certificate: tuple[Path, Path]) -> None:
    place = Listen(Endpoint("127.0.0.1", 0), *certificate, authority.certificate)
    ada, may = User("ada", "lovelace"), Permission("ada", configure=".*", write=".*", read=".*")
    rules = Configuration(listen=(place,), settings=Settings(scram=True), users=(ada,), permissions=(may,))
    modern = authority.trusting(*authority.sign("ada"))
    modern.minimum_version = ssl.TLSVersion.TLSv1_3
    async with weft.Node(configuration=rules) as node:
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "EXTERNAL"):
            url = f"amqps://ada:lovelace@127.0.0.1:{node.ports[0]}?mechanism={mechanism}"
            async with weft.connect(url, tls=modern) as fabric:
                await fabric.send("tls", mechanism)
                [peer] = [peer for _, peer in node.management.peers.items()]
                assert (peer.user, peer.mechanism) == ("ada", mechanism)


@asynccontextmanager
async def mutual(authority: Authority, certificate: tuple[Path, Path], port: int = 0) -> AsyncIterator[weft.Node]:
    """A node that logs `ada` in by her certificate."""
    place = Listen(Endpoint("127.0.0.1", port), *certificate, authority.certificate)
    may = Permission("ada", configure=".*", write=".*", read=".*")
    rules = Configuration(listen=(place,), users=(User("ada", "comes by certificate"),), permissions=(may,))
    async with weft.Node(configuration=rules) as node:
        yield node


async def test_a_session_is_taken_up_again_and_the_certificate_still_counts(
    authority: Authority, certificate: tuple[Path, Path]
) -> None:
    ada, eve = (authority.trusting(*authority.sign(name)) for name in ("ada", "eve"))
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(mutual(authority, certificate)) for _ in range(2)]
        urls = [f"amqps://127.0.0.1:{node.ports[0]}?mechanism=EXTERNAL" for node in nodes]
        seen = []
        for _ in range(3):
            for node, url in zip(nodes, urls, strict=True):
                async with weft.connect(url, tls=ada) as fabric:
                    seen.append((fabric.is_resumed, [row["user"] for row in node.snapshot()["connections"]]))
        # The first time at each of two nodes on one host is a whole handshake.
        assert seen == [(False, ["ada"])] * 2 + [(True, ["ada"])] * 4
        # Another context has another memory, and so has who may not enter.
        async with weft.connect(urls[0], tls=authority.trusting(*authority.sign("ada"))) as fabric:
            assert not fabric.is_resumed
        for _ in range(2):
            with pytest.raises(weft.Refused):
                await weft.connect(urls[0], tls=eve).open()


async def test_a_client_that_reconnects_takes_its_session_up_again(
    authority: Authority, certificate: tuple[Path, Path]
) -> None:
    ada = authority.trusting(*authority.sign("ada"))
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(mutual(authority, certificate)) for _ in range(2)]
        url = "amqps://127.0.0.1:{}?mechanism=EXTERNAL"
        async with weft.connect(url.format(one.ports[0]), tls=ada) as fabric:
            core = fabric.core
            for connections in (1, 2):
                assert core._transport is not None
                core.loop.call_soon_threadsafe(core._transport.abort)
                async with asyncio.timeout(30):
                    while core.connections == connections or not fabric.is_connected:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                assert fabric.is_resumed
            await fabric.send("tls", "after all that")
            remember(core._transport, f"127.0.0.1:{two.ports[0]}")
        # A node that does not know the session, as one that was restarted, makes a whole handshake.
        for is_resumed in (False, True):
            async with weft.connect(url.format(two.ports[0]), tls=ada) as fabric:
                assert fabric.is_resumed == is_resumed


async def test_a_pool_reuses_its_connections(authority: Authority, certificate: tuple[Path, Path]) -> None:
    ada = authority.trusting(*authority.sign("ada"))
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(mutual(authority, certificate)) for _ in range(2)]
        urls = [f"amqps://127.0.0.1:{node.ports[0]}?mechanism=EXTERNAL" for node in nodes]
        for url in urls:
            serving = await stack.enter_async_context(weft.connect(url, tls=ada))
            for number in range(13):

                @serving.service(f"service.{number}")
                async def echo(request: Message) -> object:
                    return request.body

                await echo.start()
        pool = await stack.enter_async_context(Pool(urls, tls=ada))
        assert pool.reuse == 0.0
        for number in range(130):
            async with pool.take() as fabric:
                reply = await fabric.request(f"service.{number % 13}", number, timeout_s=30)
                assert reply.body == number
        assert pool.reuse > 0.95
        assert [len(node.snapshot()["connections"]) for node in nodes] == [2, 2]


async def test_a_link_between_nodes_takes_its_session_up_again(
    authority: Authority, certificate: tuple[Path, Path]
) -> None:
    place = Listen(Endpoint("127.0.0.1", 0), *certificate)
    async with weft.Node(name="gateway", configuration=Configuration(listen=(place,))) as gateway:
        url = f"amqps://guest:guest@127.0.0.1:{gateway.ports[0]}"
        link = {"name": "up", "urls": [url], "tls_ca": str(authority.certificate), "retry_max_s": 1}
        async with weft.Node(name="local", configuration=Configuration(listen=(), links=(link,))) as local:
            seen, before = [], 0
            for _ in range(3):
                async with asyncio.timeout(30):
                    while (dialled := operational(local, before)) is None:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.01)
                seen.append(is_resumed(dialled.transport))
                before = dialled.conn_id
                dialled.transport.abort()
            assert seen == [False, True, True]


async def test_a_certificate_expires_on_a_running_link_and_is_renewed(tmp_path: Path) -> None:
    """Who is linked stays so; who comes then is told why not; with a new one in its place the node need not restart."""
    authority = Authority(tmp_path)
    certificate, key = authority.sign("gateway")
    valid = certificate.read_bytes()
    place = Configuration(listen=(Listen(Endpoint("127.0.0.1", 0), certificate, key),))
    async with weft.Node(name="gateway", configuration=place) as gateway, AsyncExitStack() as life:

        async def join(name: str) -> weft.Node:
            url = f"amqps://guest:guest@127.0.0.1:{gateway.ports[0]}"
            link = {"name": "up", "urls": [url], "tls_ca": str(authority.certificate), "retry_max_s": 1}
            route = {"link": "up", "kind": "queue", "direction": "push", "queue": "q", "key": "q"}
            node = weft.Node(name=name, configuration=Configuration(listen=(), links=(link,), routes=(route,)))
            await life.enter_async_context(node)
            node.declare_queue("q")
            return node

        async def until(what: Callable[[], object]) -> None:
            async with asyncio.timeout(30):
                while not what():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)

        def carried() -> int:
            return (gateway._running.engine.queue_stats("/", "q") or (0,))[0]

        gateway.declare_queue("q")
        early = await join("early")
        await until(lambda: early.network.federation.routes()[0]["state"] == "flowing")
        left_s = gateway.management.manager.host.certificate_s
        assert (left_s() or 0) == pytest.approx(2 * 86_400, abs=600)
        authority.expire(certificate)
        assert (left_s() or 0) > 0, "what is shown counts, not what is in the file"
        await gateway.reload(place)
        assert (left_s() or 0) == pytest.approx(-3_600, abs=600)
        late = await join("late")
        await until(lambda: "certificate has expired" in late.network.federation.links()[0]["cause"])
        await early.send("q", b"over the old link")
        await until(lambda: carried() == 1)
        certificate.write_bytes(b"half a certificate")
        with pytest.raises(ConfigError, match="are not a certificate and its key"):
            await gateway.reload(place)
        certificate.write_bytes(valid)
        await gateway.reload(place)
        await until(lambda: late.network.federation.routes()[0]["state"] == "flowing")
        await late.send("q", b"over the new one")
        await until(lambda: carried() == 2)


def operational(node: weft.Node, before: int) -> Outgoing | None:
    """The connection of a node's one link, once it works and is another than before."""
    dialled = [each for each in node._running.driver.connections.values() if isinstance(each, Outgoing)]
    if not dialled or dialled[0].conn_id == before:
        return None
    return dialled[0] if node.network.federation.links()[0]["state"] == "operational" else None


async def test_an_authority_that_is_added_counts_after_a_reload(tmp_path: Path, authority: Authority) -> None:
    trusted, later = tmp_path / "trusted.pem", tmp_path / "later"
    later.mkdir()
    other = Authority(later)
    trusted.write_bytes(authority.certificate.read_bytes())
    place = Listen(Endpoint("127.0.0.1", 0), *authority.sign("turning"), trusted)
    ada, may = User("ada", "unused"), Permission("ada", configure=".*", write=".*", read=".*")
    configuration = Configuration(listen=(place,), users=(ada,), permissions=(may,))
    async with weft.Node(configuration=configuration) as node:
        url = f"amqps://127.0.0.1:{node.ports[0]}?mechanism=EXTERNAL"
        new = authority.trusting(*other.sign("ada"))
        with pytest.raises(weft.Unavailable):
            await weft.connect(url, tls=new, timeout_s=1).open()
        trusted.write_bytes(authority.certificate.read_bytes() + other.certificate.read_bytes())
        await node.reload(configuration)
        for context in (new, authority.trusting(*authority.sign("ada"))):
            async with weft.connect(url, tls=context) as fabric:
                await fabric.send("tls", "by either")


async def test_a_health_check_tells_of_certificates_that_expire(
    authority: Authority, certificate: tuple[Path, Path]
) -> None:
    place = Listen(Endpoint("127.0.0.1", 0), *certificate)
    configuration = Configuration(listen=(place,), http=Listen(Endpoint("127.0.0.1", 0)))
    async with weft.Node(configuration=configuration) as node, aiohttp.ClientSession() as session:

        async def check(within: str) -> tuple[int, object]:
            url = f"http://127.0.0.1:{node.http_port}/api/health/checks/certificate-expiration/{within}"
            async with session.get(
                url, headers={"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"}
            ) as answer:
                return answer.status, (await answer.json()).get("expired")

        assert await check("1/days") == (200, None)
        assert await check("1/weeks") == (503, [str(certificate[0])])
        assert (await check("1/moons"))[0] == (await check("soon/days"))[0] == 400
        async with session.get(f"http://127.0.0.1:{node.http_port}/metrics") as answer:
            assert "\nweft_certificate_expires_in_seconds 17" in await answer.text()
