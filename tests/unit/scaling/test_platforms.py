"""Drivers that speak to a platform: the requests it gets, what is made of its answers, and of its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proton import Message

import weft
from interop.proton10 import Client10
from weft.cli.fabric_source import FabricSource
from weft.model.errors import ConfigError, Unavailable
from weft.scaling import Cloud, Docker, Kubernetes, Service, parse
from weft.scaling import platforms as platforms_module
from weft.scaling.file import CloudSettings, DockerSettings, KubernetesSettings
from weft.scaling.platforms import ANSWER_BYTES_MAX
from weft.scaling.run import Runner

from .platforms import TOKEN, DockerEngine, KubernetesServer, serving

SERVICE = Service("user.lifecycle", command=("x",), messages_each=10, stop_s=7, min=0)


@pytest.mark.parametrize("over", ["unix", "tcp"])
async def test_docker_runs_as_many_containers_as_wanted(tmp_path: Path, over: str) -> None:
    engine = DockerEngine()
    async with serving(engine.application(), tmp_path / "s" if over == "unix" else None) as where:
        host = where if over == "unix" else f"tcp://{where}"
        settings = DockerSettings("lifecycle:1", host=host, network="fabric", command=("serve",))
        driver = Docker("amqp://node", settings)
        assert await driver.count(SERVICE) == 0
        await driver.bring_to(SERVICE, 3)
        assert await driver.count(SERVICE) == 3
        first, *others = engine.containers[::-1]
        assert (first["Labels"], first["Cmd"]) == ({"weft.service": "user.lifecycle"}, ["serve"])
        assert first["HostConfig"] == {"AutoRemove": True, "NetworkMode": "fabric"}
        assert set(first["Env"]) >= {"WEFT_URL=amqp://node", "WEFT_SERVICE=user.lifecycle"}
        assert len({one["Name"] for one in (first, *others)}) == 3
        # Another scaler, as after a restart, finds them; somebody else's are not its own.
        again = Docker("amqp://node", settings)
        assert await again.count(SERVICE) == 3
        await again.close()
        assert await driver.count(Service("other")) == 0
        await driver.bring_to(SERVICE, 1)
        assert await driver.count(SERVICE) == 1, "what was told to end counts no longer"
        await driver.close()
        assert engine.containers == [first], "the newest go first"
        assert {seconds for _, seconds in engine.stopped} == {"7"}


async def test_what_docker_refuses_is_told_and_nothing_is_left_behind(tmp_path: Path) -> None:
    engine = DockerEngine()
    async with serving(engine.application(), tmp_path / "s") as host:
        unknown = Docker("amqp://node", DockerSettings("nothing:1", host=host))
        with pytest.raises(Unavailable, match="404: No such image: nothing:1"):
            await unknown.bring_to(SERVICE, 1)
        await unknown.close()
        driver = Docker("amqp://node", DockerSettings("lifecycle:1", host=host))
        engine.is_startable = False
        with pytest.raises(Unavailable, match="driver failed"):
            await driver.bring_to(SERVICE, 1)
        assert engine.containers == []
        await driver.close()
    gone = Docker("amqp://node", DockerSettings("lifecycle:1", host=host))
    with pytest.raises(Unavailable, match="Docker at"):
        await gone.count(SERVICE)
    await gone.close()


async def test_kubernetes_is_told_how_many_replicas(tmp_path: Path) -> None:
    server, token = KubernetesServer(), tmp_path / "token"
    token.write_text(TOKEN + "\n")
    async with serving(server.application()) as where:
        url = f"http://{where}"
        driver = Kubernetes(KubernetesSettings("lifecycle", "payments", url, str(token)))
        assert await driver.count(SERVICE) == 1
        await driver.bring_to(SERVICE, 4)
        assert (server.replicas, await driver.count(SERVICE)) == (4, 4)
        await driver.bring_to(SERVICE, 0)
        assert (server.replicas, await driver.count(SERVICE)) == (0, 0)
        token.write_text("expired")
        with pytest.raises(Unavailable, match="401: Unauthorized"):
            await driver.count(SERVICE)
        await driver.close()
        token.write_text(TOKEN)
        other = Kubernetes(KubernetesSettings("other", "payments", url, str(token)))
        with pytest.raises(Unavailable, match='"other" not found'):
            await other.bring_to(SERVICE, 1)
        await other.close()


async def test_an_answer_that_is_not_the_platforms_is_told() -> None:
    async def wrong(_address: str, _body: Mapping[str, object]) -> Mapping[str, Any]:
        return {"instances": "many"}

    with pytest.raises(Unavailable, match="cannot be read"):
        await Cloud(CloudSettings("cloud"), wrong).count(SERVICE)


@pytest.mark.parametrize("bytes_max", [ANSWER_BYTES_MAX, 100_000])
async def test_an_answer_may_come_in_pieces_and_may_not_go_on_for_ever(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    monkeypatch.setattr(platforms_module, "ANSWER_BYTES_MAX", bytes_max)
    body = json.dumps([{"Id": f"{number:064}"} for number in range(3_000)]).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 32_768):
                writer.write(body[at : at + 32_768])
                await writer.drain()
                await asyncio.sleep(0.001)  # so that they are read apart

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        docker = Docker("", DockerSettings("image", host=f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        if bytes_max > len(body):
            assert await docker.count(SERVICE) == 3_000
        else:
            with pytest.raises(Unavailable, match="more than 100000 bytes"):
                await docker.count(SERVICE)
        await docker.close()


async def test_a_request_that_json_cannot_say_is_none_and_the_next_is_heard() -> None:
    def send(port: int) -> None:
        with Client10(SimpleNamespace(host="127.0.0.1", port=port)) as client:
            link = client.sender("/queues/weft.scaling")
            for body in ({"service": b"bytes"}, {"service": "s"}):
                client.send(link, Message(body=body))

    async with weft.Node(listen="127.0.0.1:0") as node, weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:
        node.declare_queue("weft.scaling")
        await asyncio.to_thread(send, node.ports[0])
        requests = FabricSource(fabric, node.name).requests("weft.scaling")
        async with asyncio.timeout(30):
            assert [await anext(requests), await anext(requests)] == [b"", b'{"service": "s"}']
        await requests.aclose()  # type: ignore[attr-defined]


async def test_a_cloud_is_asked_by_messages_and_a_load_step_reaches_it() -> None:
    """A stand-in for a cloud's controller answers on the fabric; the scaler drives it as any driver."""
    kept: dict[str, int] = {}
    text = "[services.work]\nmessages_each = 10\nmin = 1\nmax = 3\nup_s = 0\ndown_s = 0\n"
    services = parse(text + '[services.work.cloud]\naddress = "cloud"\n')
    async with weft.Node(listen="127.0.0.1:0") as node, weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:

        @fabric.service("cloud")
        async def cloud(message: weft.client.Message) -> dict[str, object]:
            asked = message.body
            if asked["operation"] == "scale":
                if asked["instances"] > 2:
                    return {"error": "quota exceeded: 2 instances"}
                kept[asked["service"]] = asked["instances"]
            return {"instances": kept.get(asked["service"], 0)}

        await cloud.start()
        node.declare_queue("work")
        lines: list[str] = []
        runner = Runner(services, FabricSource(fabric, "here"), "", write=lines.append)
        await runner.look()
        assert kept == {"work": 1}
        for _ in range(15):
            await node.send("work", b"x")
        await runner.look()
        assert kept == {"work": 2}
        await runner.request(json.dumps({"service": "work", "instances": 3}).encode())
        await runner.look()
        assert (kept, "quota exceeded" in lines[-1]) == ({"work": 2}, True)
        await runner.request(json.dumps({"service": "work", "instances": 1}).encode())
        await runner.look()
        assert kept == {"work": 1}
        lines.clear()
        for strange in (b'"hold_s": NaN', b'"hold_s": 1' + b"0" * 400, b'"reason": ' + b"[" * 100_000, b'"add": 1.5'):
            await runner.request(b'{"service": "work", "instances": 3, ' + strange + b"}")
        assert [line[:51] for line in lines] == ["a scaling request that cannot be read was dropped: "] * 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[services.a]\nmessages_each = 1\n[services.a.docker]\n", "needs image"),
        ('[services.a]\nmessages_each = 1\n[services.a.docker]\nimage = "x"\ncolour = "y"', "no such key: colour"),
        ("[services.a]\nmessages_each = 1\n[services.a.kubernetes]\ndeployment = 1", "deployment must be a string"),
        ('[services.a]\nmessages_each = 1\ncommand = ["x"]\n[services.a.cloud]\naddress = "x"', "needs one of"),
        ("[services.a]\nmessages_each = 1\ncloud = 3", "cloud: must be a section"),
    ],
)
def test_a_wrong_platform_is_told_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)
