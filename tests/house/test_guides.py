"""The Python of the guides runs, as it stands there, against one node.

A block that cannot run here is named with the reason. Names that the text explains are made by what is run before it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import peers
from house import tree

TIMEOUT_S = 30.0
ELSEWHERE = {
    "context = ssl.create_default_context": "needs certificates: tests/client/test_tls.py",
    "import weft.spark": "starts Spark: tests/spark",
}
"""How blocks begin that are not run here, and why."""
CHANNEL = "import pika\nchannel = pika.BlockingConnection(pika.URLParameters(url)).channel()\n"
NODE = "node = weft.Node()\nawait node.start()\n"
BEFORE = {
    'async with weft.connect("amqp://shop")': "async with weft.connect(url) as fabric:\n"
    "    await fabric.send('orders', {'id': 7})\n",
    "from weft.client.signing": "secret, private = b's' * 32, b'p' * 32\n"
    "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey\n"
    "public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()\n",
    "class Echo(weft.NodeType)": NODE,
    'channel.queue_declare("orders", durable=True, arguments={"x-barrier"': CHANNEL
    + "channel.queue_delete('orders')\n",
    'channel.queue_declare("log"': CHANNEL,
    "channel.basic_qos": CHANNEL + "on_message = print\n",
    "async with weft.connect() as fabric, fabric.stream": "async with weft.connect() as fabric:\n"
    "    await fabric.send('/queues/log', 'kept')\n",
    'async with weft.connect() as fabric, fabric.receive("orders"': "async with weft.connect() as fabric:\n"
    "    await fabric.send('orders', 'work')\n",
    "node.tap(": NODE + "node.declare_exchange('orders', 'topic')\nnode.declare_queue('invoices')\n"
    "node.declare_queue('log', durable=True, arguments={'x-queue-type': 'stream'})\n",
    "request = Message(": "from proton import Message\n"
    "from proton.utils import BlockingConnection, SyncRequestResponse\n"
    "connection = BlockingConnection(url, allowed_mechs='ANONYMOUS')\n"
    "connection.create_receiver('orders').close()\n",
}
"""What the text around a block has made already, by how the block begins."""
AFTER = {
    "channel.": "channel.connection.close()\n",
    "class Echo": "await node.stop()\n",
    "node.tap(": "await node.stop()\n",
    "request =": "connection.close()\n",
}
ENDLESS = {
    "print(message.body) ": "print(message.body); break",
    "        ...": "        break",
    "order.data, durable=True)": "order.data, durable=True)\n            break",
}
"""A loop over messages goes on for ever; here it ends with its first."""
SAYS = {"import asyncio, weft": "{'id': 7}\n", "request = Message(": "200 "}


def blocks() -> Iterator[tuple[str, str]]:
    """Every block of the guides that is Python and does something."""
    for page in tree.files(".md", under=("docs/guides",)):
        text = page.read_text(encoding="utf-8")
        fenced = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        indented = re.findall(r"(?:^    .*\n|^\n(?=    ))+", re.sub(r"(?ms)^```.*?^```", "", text), re.MULTILINE)
        for block in (*fenced, *map(textwrap.dedent, indented)):
            if _does_something(block.strip("\n")):
                yield tree.name(page), block.strip("\n")


def _does_something(block: str) -> bool:
    try:
        module = ast.parse(block)
    except SyntaxError:
        return False  # a command, a file, or what one prints
    return any(isinstance(each, ast.Call | ast.ClassDef) for each in ast.walk(module))


BLOCKS = list(blocks())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Peer]:
    peer = peers.start_weft(tmp_path_factory.mktemp("node"))
    yield peer
    peer.stop()


def _of(table: dict[str, str], block: str) -> str:
    return next((value for start, value in table.items() if block.startswith(start)), "")


def test_every_exception_is_still_there() -> None:
    for table in (ELSEWHERE, BEFORE, AFTER, SAYS):
        for start in table:
            assert any(block.startswith(start) for _, block in BLOCKS), start


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}:{block.splitlines()[0]}" for page, block in BLOCKS])
def test_block(
    page: str,
    block: str,
    node: peers.Peer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if reason := _of(ELSEWHERE, block):
        pytest.skip(reason)
    url = f"amqp://{node.host}:{node.port}"
    monkeypatch.setenv("WEFT_URL", url)
    text = re.sub(r'"amqps?://(one|two|shop|store|shop\.example\.com)"', f'"{url}"', block)
    text = text.replace("/var/lib/till/spool", str(tmp_path))
    for endless, ended in ENDLESS.items():
        text = text.replace(endless, ended)
    program = f"import weft\nurl = {url!r}\n{_of(BEFORE, block)}{text}\n{_of(AFTER, block)}"
    running = eval(compile(program, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": page})
    if inspect.iscoroutine(running):
        asyncio.run(asyncio.wait_for(running, TIMEOUT_S))
    assert _of(SAYS, block) in capsys.readouterr().out
