"""The measure `tls`: many short conversations over mutual TLS, with sessions taken up again and connections shared.

Owns nodes that ask for certificates, in this process, and a client beside them. What an open connection costs is told
for a whole handshake and for one that takes a session up again, in time and in bytes; a pool then carries requests to
1,300 services, and tells how many found a connection that was open. It must never be imported by what it measures:
`measures.py` runs it as a program, and it prints one line of JSON.
Rule: every connection is mutual: the client shows a certificate, and the node logs it in by that.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench import Bench, Row, Runs, medians, row

SERVICES = 1_300
SERVICES_PER_CLIENT = 100
CONVERSATIONS = 4_000
OPENINGS = 40
USER = "till"


def conversations(bench: Bench, quick: bool) -> list[Row]:
    """Openings with and without a known session, and a pool under many conversations."""
    runs: Runs = {"weft": []}
    for _ in range(bench.repetitions):
        bench.say("weft: conversations over mutual TLS")
        runs["weft"].append(bench.script(__file__, SERVICES // 10 if quick else SERVICES))
    found = {key: medians(runs, key)["weft"] for key in runs["weft"][0]}
    fewer, sooner = found["resumed_bytes"] < found["whole_bytes"], found["resumed_ms"] < found["whole_ms"]
    met = found["reuse"] > 95 and found["resumed"] == 100
    return [
        row("mutual TLS: a connection opened, p50", "ms", runs, "whole_ms"),
        row("  with a session taken up again", "ms", runs, "resumed_ms", target="less", met=sooner),
        row("mutual TLS: bytes of a handshake", "B", runs, "whole_bytes"),
        row("  with a session taken up again", "B", runs, "resumed_bytes", target="fewer", met=fewer),
        row("requests of a pool that found an open connection", "%", runs, "reuse", target="> 95", met=met),
        row("  such requests per second", "/s", runs, "rate"),
    ]


class Papers:
    """An authority and what it has signed, made by openssl in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority, self._key = self._make("authority", "-x509", "-days", "2")

    def sign(self, name: str) -> tuple[Path, Path]:
        request, key = self._make(name)
        signed, names = self._folder / f"{name}.signed.pem", self._folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1")
        by = ["-CA", str(self.authority), "-CAkey", str(self._key), "-CAcreateserial", "-extfile", str(names)]
        _openssl("x509", "-req", "-days", "2", *by, "-in", str(request), "-out", str(signed))
        return signed, key

    def context(self, name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(*self.sign(name))
        return context

    def _make(self, name: str, *options: str) -> tuple[Path, Path]:
        made, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl("req", *kind, "-subj", f"/CN={name}", *options, "-keyout", str(key), "-out", str(made))
        return made, key


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def handshake(port: int, context: ssl.SSLContext, known: ssl.SSLSession | None) -> tuple[int, bool, ssl.SSLSession]:
    """(bytes in both directions, was the session taken up again, the session to take up next)."""
    incoming, outgoing, count = ssl.MemoryBIO(), ssl.MemoryBIO(), 0
    end = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1", session=known)
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.settimeout(10)
        for step in (end.do_handshake, lambda: end.read(8)):
            while True:
                try:
                    step()
                    wants = False
                except ssl.SSLWantReadError:
                    wants = True
                count += len(data := outgoing.read())
                plain.sendall(data)
                # After the handshake the node says its tickets by itself; nothing else comes before our first word.
                if not wants or (step != end.do_handshake and end.session is not None and end.session.has_ticket):
                    break
                count += len(data := plain.recv(65_536))
                incoming.write(data)
        assert end.session is not None
        return count, bool(end.session_reused), end.session


async def main(services: int) -> None:
    import weft
    from weft.client.pool import Pool
    from weft.config import Configuration, Listen, Permission, User
    from weft.net.endpoint import Endpoint

    with tempfile.TemporaryDirectory() as folder:
        papers = Papers(Path(folder))
        place = Listen(Endpoint("127.0.0.1", 0), *papers.sign("node"), papers.authority)
        may = Permission(USER, configure=".*", write=".*", read=".*")
        rules = Configuration(listen=(place,), users=(User(USER, "comes by certificate"),), permissions=(may,))
        context = papers.context(USER)
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(weft.Node(configuration=rules)) for _ in range(2)]
            urls = [f"amqps://127.0.0.1:{node.ports[0]}?mechanism=EXTERNAL" for node in nodes]
            result = await asyncio.to_thread(_bytes, nodes[0].ports[0], context)
            whole = [await _open(urls[0], papers.context(USER)) for _ in range(OPENINGS // 4)]
            again = [await _open(urls[0], context) for _ in range(OPENINGS)][1:]
            result |= {"whole_ms": _p50_ms(whole), "resumed_ms": _p50_ms(again)}
            result["resumed"] = 100 * sum(reused for _, reused in again) / len(again)
            for url in urls:
                await _serve(stack, url, context, services)
            async with Pool(urls, policy="round-robin", tls=context) as pool:
                result |= await _converse(pool, services)
        print(json.dumps(result))


def _bytes(port: int, context: ssl.SSLContext) -> dict[str, float]:
    whole, _, session = handshake(port, context, None)
    resumed, reused, _ = handshake(port, context, session)
    assert reused
    return {"whole_bytes": whole, "resumed_bytes": resumed}


async def _open(url: str, context: ssl.SSLContext) -> tuple[float, bool]:
    import weft

    before = time.perf_counter()
    async with weft.connect(url, tls=context) as fabric:
        return time.perf_counter() - before, fabric.is_resumed


def _p50_ms(openings: list[tuple[float, bool]]) -> float:
    return statistics.median(took for took, _ in openings) * 1e3


async def _serve(stack: AsyncExitStack, url: str, context: ssl.SSLContext, services: int) -> None:
    import weft

    for first in range(0, services, SERVICES_PER_CLIENT):
        fabric = await stack.enter_async_context(weft.connect(url, tls=context))
        for number in range(first, min(services, first + SERVICES_PER_CLIENT)):

            @fabric.service(f"service.{number}", presence_s=3_000)
            async def echo(request: object) -> object:
                return request.body  # type: ignore[attr-defined]

            await echo.start()


async def _converse(pool: object, services: int) -> dict[str, float]:
    before = time.perf_counter()

    async def talk(lane: int) -> None:
        for number in range(lane, CONVERSATIONS, 16):
            async with pool.take() as fabric:  # type: ignore[attr-defined]
                await fabric.request(f"service.{number % services}", b"x" * 256, durable=False)

    await asyncio.gather(*(talk(lane) for lane in range(16)))
    took_s = time.perf_counter() - before
    return {"reuse": 100 * pool.reuse, "rate": CONVERSATIONS / took_s}  # type: ignore[attr-defined]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
