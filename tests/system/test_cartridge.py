"""A node that joins by itself: the image's own entry point, with one variable and nothing else in its environment."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.config import node_name_default
from weft.model.errors import Refused
from weft.net.own_address import own_address

DEPLOY = Path(__file__).parents[2] / "deploy"
WAIT_S = 30.0


def entry_point(data_dir: Path) -> list[str]:
    """The command of the image, on a free port and in a folder of the test."""
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    here = {"0.0.0.0:5672": "127.0.0.1:0", "/data/node": str(data_dir)}
    command, *words = json.loads(line)
    assert (command, here.keys() - set(words)) == ("weft", set())
    return [sys.executable, "-m", "weft", *(here.get(word, word) for word in words)]


def start(data_dir: Path, gateway: str) -> subprocess.Popen[str]:
    env = {"WEFT_GATEWAY": gateway}
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.Popen(entry_point(data_dir), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


async def until_row(node: weft.Node, kind: str, name: str, *, is_there: bool = True) -> dict[str, Any]:
    """An object of a node, once it is there; or nothing, once it is gone."""
    manager = node.management.manager
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                row = await manager.read(manager.node, kind, "/", name)
            except Refused:
                row = {}
            if bool(row) == is_there:
                return row
            await asyncio.sleep(0.02)


@pytest.mark.timeout(120)
async def test_the_entry_point_registers_itself_and_serves(tmp_path: Path) -> None:
    member = f"/members/{node_name_default()}"
    async with weft.Node(name="hub", listen="127.0.0.1:0") as hub:
        nothing, living = "amqp://127.0.0.1:1", f"amqp://127.0.0.1:{hub.ports[0]}"
        process = start(tmp_path, f"{nothing}, {living}")
        try:
            (url,) = (await until_row(hub, "directory", member))["value"]["urls"]
            async with weft.connect(url) as there, asyncio.timeout(WAIT_S):
                receiver = there.receive("service://work")
                first = asyncio.ensure_future(anext(receiver))
                await until_row(hub, "queue", "work.request")
                await hub.send("service_gateway.direct/work.request", b"begin")
                assert (await first).data == b"begin"
                await receiver.close()
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = await asyncio.to_thread(process.communicate, timeout=WAIT_S)
        assert process.returncode == 0, said
        await until_row(hub, "directory", member, is_there=False)


def test_a_gateway_that_is_no_url_is_one_line(tmp_path: Path) -> None:
    process = start(tmp_path, "nowhere at all")
    said, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said.count("\n")) == (2, 1), said


def test_where_a_node_that_listens_everywhere_is() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("0.0.0.0") not in ("0.0.0.0", "")


def test_the_manifest_names_the_variable_and_the_port_of_the_image() -> None:
    manifest = (DEPLOY / "kubernetes.yaml").read_text()
    assert re.search(r"env:\n +- name: WEFT_GATEWAY\n", manifest)
    (port,) = re.findall(r"^EXPOSE (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert f"containerPort: {port}" in manifest
    assert "mountPath: /data\n" in manifest
