"""The commands that ask a running node, as an operator types them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path

import aio_pika
import pytest

import weft
from unit.network.fabric import flowing, until
from weft.cli import main
from weft.client.management import Management

Run = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def weft_command(node: weft.Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """Run a command against the node; (exit code, what it printed)."""
    monkeypatch.setenv("WEFT_URL", f"amqp://127.0.0.1:{node.ports[0]}")

    async def run(*words: str) -> tuple[int, str]:
        try:
            code = await asyncio.to_thread(main, words)
        except SystemExit as end:  # as argparse ends
            code = int(str(end.code))
        told = capsys.readouterr()
        return code, told.out + told.err

    return run


async def test_objects(node: weft.Node, weft_command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert (await weft_command("ctl", "add", "queue", "orders", "durable=true"))[0] == 0
    await node.send("orders", b"hello")
    code, text = await weft_command("ctl", "list", "queue", "--columns", "name,ready", "--contains", "orders")
    assert (code, text.split()) == (0, ["NAME", "READY", "orders", "1"])
    code, text = await weft_command("ctl", "--json", "show", "queue", "orders")
    assert (code, json.loads(text)["ready"]) == (0, 1)
    assert "here" in (await weft_command("ctl", "show", "node"))[1]
    assert "barrier" in (await weft_command("ctl", "classes"))[1]
    code, text = await weft_command("ctl", "call", "node", "here", "echo", "value=hi")
    assert (code, json.loads(text)) == (0, {"value": "hi"})
    assert (await weft_command("ctl", "export", str(tmp_path / "all.json")))[0] == 0
    assert (await weft_command("ctl", "del", "queue", "orders"))[0] == 0
    assert (await weft_command("ctl", "show", "queue", "orders"))[0] == 1
    assert (await weft_command("ctl", "import", str(tmp_path / "all.json")))[0] == 0
    assert (await weft_command("ctl", "show", "queue", "orders"))[0] == 0
    (tmp_path / "odd.json").write_text("{")
    for name, complaint in (("none.json", "cannot read {}: no such file or directory"), ("odd.json", "{} is not JSON")):
        code, text = await weft_command("ctl", "import", str(tmp_path / name))
        assert (code, text.startswith("weft ctl: " + complaint.format(tmp_path / name))) == (2, True)


async def test_no_peer_steers_the_terminal(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    node.declare_queue("\x1b[2Jgone – weg")
    await node.send("\x1b[2Jgone – weg", b"one\ntwo\x1b]0;title\x07")
    assert "\\x1b[2Jgone – weg " in (await weft_command("queue", "list"))[1]
    assert (await weft_command("browse", "\x1b[2Jgone – weg"))[1].endswith("one\\ntwo\\x1b]0;title\\x07\n")


async def test_the_map_begins_where_the_environment_says(weft_command) -> None:  # type: ignore[no-untyped-def]
    assert "[here]" in (await weft_command("map"))[1]


async def test_who_looks_makes_nothing(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    for words in (("browse", "typo"), ("trace", "typo", "id"), ("tap", "typo"), ("move", "typo", "x")):
        code, text = await weft_command(*words)
        assert (code, "no queue 'typo'" in text) == (1, True), words
    code, text = await weft_command("tap", "typo/#")
    assert (code, text.strip()) == (1, "weft tap: there is no exchange 'typo', nor a queue 'typo/#'")
    assert not [row["name"] for row in node.snapshot()["queues"] if "typo" in row["name"]]


MISTAKES = {
    ("ctl", "list", "quue"): "no class 'quue', did you mean 'queue'?",
    ("ctl", "list", "queue", "--columns", "name,redy"): "a queue has no 'redy', did you mean 'ready'?",
    ("ctl", "list", "queue", "--columns", "zzz"): "a queue has no 'zzz', known are name, vhost, ",
    ("ctl", "list", "queue", "--sort", "publishd"): "a queue has no 'publishd', did you mean 'published'?",
    ("ctl", "list", "queue", "--where", "durabel=true"): "a queue has no 'durabel', did you mean 'durable'?",
    ("ctl", "list", "queue", "--where", "durable"): "'durable' is not KEY=VALUE",
    ("ctl", "list", "queue", "--count", "0"): "0 is less than 1",
    ("ctl", "list", "queue", "--count", "many"): "'many' is not a whole number",
    ("ctl", "show", "quue", "q"): "no class 'quue'",
    ("ctl", "add", "quue", "q"): "no class 'quue'",
    ("ctl", "add", "queue", "q", "durable"): "'durable' is not KEY=VALUE",
    ("ctl", "call", "quue", "q", "purge"): "no class 'quue'",
    ("ctl", "nonsense"): "invalid choice: 'nonsense'",
    ("ctl", "show", "queue", "\udcff"): "is not UTF-8",
    ("browse", "\udcff"): "is not UTF-8",
    ("browse", "q", "--count", "-1"): "-1 is less than 1",
    ("tap", "q", "--count", "0"): "0 is less than 1",
    ("trace", "q", "--count", "x"): "'x' is not a whole number",
    ("move", "q", "--count", "1"): "the following arguments are required: to",
    ("move", "q", "p", "--count", "0"): "0 is less than 1",
    ("retry", "q", "--count", "1.5"): "'1.5' is not a whole number",
    ("top", "--sort", "names"): "invalid choice: 'names'",
    ("top", "--pause", "nan"): "nan is not more than 0 seconds",
    ("top", "--pause", "-1"): "-1 is not more than 0 seconds",
    ("report", "--pause", "soon"): "'soon' is not a number of seconds",
    ("quiesce", "now"): "unrecognized arguments: now",
    ("resume", "--force"): "unrecognized arguments: --force",
    ("drain", "--url", "nonsense://x"): "nonsense",
    ("drain", "--url", "amqp://127.0.0.1:99999"): "99999",
}


async def test_a_mistake_is_one_line(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    node.declare_queue("q")
    before = node.snapshot()["queues"]
    for words, line in MISTAKES.items():
        code, text = await weft_command(*words)
        assert (code, line in text, text.count("\n")) == (2, True, 1), (words, code, text)
    assert [row["name"] for row in node.snapshot()["queues"]] == [row["name"] for row in before]


async def test_messages(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    node.declare_queue("dead")
    node.declare_queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    for number in range(3):
        await node.send("work", f"job {number}", message_id=f"m{number}")
    code, text = await weft_command("browse", "work")
    assert (code, text.count("job")) == (0, 3)
    code, text = await weft_command("trace", "work", "m1")
    assert (code, text.split()[3:5]) == (0, ["m1", "here"])
    async with node.receive("work") as receiver:
        (await anext(receiver)).reject()
    assert "1 message moved" in (await weft_command("retry", "dead"))[1]
    assert "2 messages moved" in (await weft_command("move", "work", "dead", "--count", "2"))[1]
    rows = {row["name"]: row["ready"] for row in node.snapshot()["queues"]}
    assert (rows["work"], rows["dead"]) == (1, 2)


async def test_transactions_in_doubt(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    """Prepared by a coordinator that is gone: one is carried out by hand, one undone, one has no text as its name."""
    node.declare_queue("paid")
    async with weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric, fabric.session() as session:
        for identity in (b"shop/1", b"shop/2", b"\xff\x00"):
            transaction = await session.transaction().begin()
            await transaction.send(session.sender("paid"), identity)
            await transaction.prepare(identity)
    code, text = await weft_command(
        "ctl", "list", "transaction", "--columns", "name,user,messages,held", "--sort", "name"
    )
    rows = [line.split() for line in text.splitlines()]
    assert (code, rows[0]) == (0, ["NAME", "USER", "MESSAGES", "HELD"])
    assert rows[1:] == [[name, "guest", "1", "0"] for name in ("0xff00", "shop/1", "shop/2")]
    assert (await weft_command("ctl", "call", "transaction", "shop/1", "commit"))[0] == 0
    assert (await weft_command("ctl", "call", "transaction", "shop/2", "rollback"))[0] == 0
    assert (await weft_command("ctl", "call", "transaction", "0xff00", "commit"))[0] == 0
    code, text = await weft_command("ctl", "call", "transaction", "shop/1", "commit")
    assert (code, "shop/1" in text) == (1, True)
    assert (await weft_command("ctl", "call", "transaction", "shop/2", "forget"))[0] == 1
    code, text = await weft_command("ctl", "--json", "list", "transaction")
    assert (code, json.loads(text)) == (0, [])
    assert {row["name"]: row["ready"] for row in node.snapshot()["queues"]}["paid"] == 2
    async with node.receive("paid") as receiver:
        assert [bytes((await anext(receiver)).body) for _ in range(2)] == [b"shop/1", b"\xff\x00"]


async def test_scale_in_its_four_senses(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    node.declare_queue("held")
    for _ in range(5):
        await node.send("held", b"x" * 1_000)
    code, text = await weft_command("report", "--json", "--pause", "0.05")
    told = json.loads(text)
    assert (code, list(told)) == (0, ["capacity", "sharing", "availability", "administration"])
    assert {"published_per_s", "delivered_per_s", "time_in_queue_p99_us", "memory_bytes"} <= set(told["capacity"])
    assert told["capacity"]["messages_waiting"] == 5
    assert told["capacity"]["bytes_waiting"] >= 5_000
    assert told["sharing"] == {"links": {}, "routes": {}, "services": 0, "instances": 0}
    assert told["availability"]["state"] == "running"
    assert told["administration"]["queues"] == len(node.snapshot()["queues"]) + 1  # that of the command's own replies
    code, text = await weft_command("report", "--pause", "0.05")
    assert (code, "messages waiting        5" in text) == (0, True)


async def test_the_node(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    assert (await weft_command("quiesce"))[0] == 0
    assert node.management.manager.is_quiesced
    assert (await weft_command("resume"))[0] == 0
    assert not node.management.manager.is_quiesced
    node.declare_queue("shown")
    code, text = await weft_command("top", "--once", "--pause", "0.1")
    assert code == 0
    assert "shown" in text
    assert (await weft_command("drain"))[0] == 0
    assert node.ports == ()


async def test_quiesce_holds_back_until_resume(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    got: list[bytes] = []
    arrived = asyncio.Event()

    async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        got.append(message.body)
        await message.ack()
        arrived.set()

    connection = await aio_pika.connect(f"amqp://127.0.0.1:{node.ports[0]}")
    async with connection:
        channel = await connection.channel()  # its publishes are confirmed: the node works on, but hands nothing over
        queue = await channel.declare_queue("held")
        await queue.consume(take)
        assert (await weft_command("quiesce"))[0] == 0
        bodies = [b"%d" % number for number in range(20)]
        for count, body in enumerate(bodies, 1):
            await channel.default_exchange.publish(aio_pika.Message(body), "held")
            assert (await channel.declare_queue("held", passive=True)).declaration_result.message_count == count
        assert got == []
        assert (await weft_command("resume"))[0] == 0
        while len(got) < len(bodies):
            arrived.clear()
            await asyncio.wait_for(arrived.wait(), 10)
    assert got == bodies


async def test_a_tap_sees_and_takes_nothing(node: weft.Node, weft_command) -> None:  # type: ignore[no-untyped-def]
    node.declare_exchange("news", "topic")
    node.declare_queue("reader")
    node.bind("news", "reader", "#")
    tapping = asyncio.create_task(weft_command("tap", "news/a.*", "--count", "1"))
    bindings = node.management.manager.host.topology.bindings
    while sum(row.source == "news" for row in bindings("/")) < 2:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)
    await node.send("news/a.b", b"seen")
    code, text = await tapping
    assert (code, "seen" in text) == (0, True)
    assert next(row["ready"] for row in node.snapshot()["queues"] if row["name"] == "reader") == 1


async def test_line_ends_in_names_are_dropped_wherever_they_come_from(  # as RabbitMQ does
    node: weft.Node,
    weft_command,  # type: ignore[no-untyped-def]
) -> None:
    assert (await weft_command("queue", "add", "a\nb"))[0] == 0
    assert (await weft_command("send", "c\r\nd", "x"))[0] == 0
    async with weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:
        management = Management(fabric)
        assert (await management.read("queue", "\nab"))["name"] == "ab"
        names = {row["name"] for row in await management.query("queue")}
        assert {"ab", "cd"} <= names
        assert not any("\n" in name for name in names)
    assert (await weft_command("queue", "del", "c\nd", "--force"))[0] == 0
    code, text = await weft_command("queue", "del", "no\x1b[31m red")
    assert (code, text) == (1, "weft queue: no queue 'no\\x1b[31m red' in virtual host '/'\n")
    code, text = await weft_command("queue", "add", "x" * 256)
    assert (code, text) == (1, "weft queue: a name may have at most 255 bytes\n")


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str, lines: int = 24) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (lines, 100))
        self.before = termios.tcgetattr(self._ours)
        command = [sys.executable, "-m", "weft", *words]
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = subprocess.Popen(command, **ends, env=env, start_new_session=True)
        os.close(theirs)

    async def until(self, words: str) -> str:
        """Read until it has written this; all of it since the last time."""
        seen, loop = "", asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while words not in seen:
                seen += (await loop.run_in_executor(None, os.read, self._ours, 65_536)).decode(errors="replace")
        return seen

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def resize(self, lines: int) -> None:
        termios.tcsetwinsize(self._ours, (lines, 100))
        self.process.send_signal(signal.SIGWINCH)

    async def end(self) -> int:
        """How it ended; the terminal must be as it was."""
        code = await asyncio.to_thread(self.process.wait, 60)
        assert termios.tcgetattr(self._ours) == self.before
        os.close(self._ours)
        return code


@pytest.mark.slow
async def test_the_screen_shows_nodes_links_and_queues_and_obeys_keys(node: weft.Node) -> None:
    async with weft.Node(name="there", listen="127.0.0.1:0") as there:
        for one in (node, there):
            one.declare_exchange("wide", "topic")
        for number in range(40):
            node.declare_queue(f"queue-{number:02}[red]")
        node.add_link("up", [f"amqp://127.0.0.1:{there.ports[0]}"])
        node.add_route("up", "static", exchange="wide", key="#")
        await node.send("queue-07[red]", b"waits")
        await until(lambda: flowing(node))
        url = f"amqp://127.0.0.1:{node.ports[0]}"
        terminal = Terminal("top", "--url", url, "--pause", "60", "--all", lines=30)
        try:
            seen = await terminal.until("by ready")
            assert seen.index("queue-07[red]") < seen.index("queue-39[red]"), "the longest first"
            assert re.search(r"up +there +operational +1 ", seen), "the link"
            assert re.search(r"there +running +", seen), "the other node"
            assert "queue-03" not in seen
            terminal.resize(80)
            await terminal.until("queue-03[red]")
            terminal.press("w")
            await terminal.until("by wait")
            await node.stop()
            terminal.press("r")
            await terminal.until("no answer")
            terminal.press("q")
            assert await terminal.end() == 0
        finally:
            if terminal.process.poll() is None:
                terminal.process.kill()
                terminal.process.wait()


async def test_bindings_with_arguments_and_to_exchanges(node: weft.Node, weft_command: Run) -> None:
    for words in (
        "add headers tasks",
        "add fanout all",
        "bind tasks red --argument x-match=any --argument colour=red",
        "bind tasks red --argument x-match=any --argument size=5",
        "bind all tasks --kind exchange",
    ):
        node.declare_queue("red")
        assert await weft_command("exchange", *words.split()) == (0, "")
    assert await node.send("tasks/", b"", headers={"colour": "red"}) == 1
    code, text = await weft_command("exchange", "bindings")
    assert (code, len(text.splitlines())) == (0, 4)  # the reply address of the command itself is not told
    assert '{"x-match": "any", "size": 5}' in text
    gone = ["unbind", "tasks", "red", "--argument", "x-match=any", "--argument", "size=5"]
    assert await weft_command("exchange", *gone) == (0, "")
    code, text = await weft_command("exchange", *gone)
    assert (code, "no binding of 'red' to 'tasks' with key '' and arguments" in text) == (1, True)
    assert await weft_command("exchange", *["unbind", "all", "tasks", "--kind", "exchange"]) == (0, "")
    code, text = await weft_command("exchange", "list")
    assert re.search(r"^tasks +headers +yes +1 +1 +1 ", text, re.MULTILINE)


async def test_lists_tell_the_virtual_host_where_there_is_another(node: weft.Node, weft_command: Run) -> None:
    node.declare_queue("here")
    assert "VHOST" not in (await weft_command("queue", "list"))[1]
    assert (await weft_command("ctl", "add", "vhost", "green"))[0] == 0
    allow = "permission", "guest", "configure=.*", "write=.*", "read=.*"
    code, text = await weft_command("ctl", "add", *allow, "vhost=green")  # and not without a word in another one
    assert (code, text) == (1, "weft ctl: the request is for virtual host '/', and its body for 'green'\n")
    assert await weft_command("ctl", "add", *allow, "--vhost", "green") == (0, "")
    assert await weft_command("queue", "add", "there", "--url", f"{os.environ['WEFT_URL']}/green") == (0, "")
    assert await weft_command("queue", "add", "more", "--vhost", "green") == (0, "")
    assert re.search(r"^there +green ", (await weft_command("queue", "list"))[1], re.MULTILINE)
    _, text = await weft_command("queue", "list", "--vhost", "green")
    assert [line.split()[0] for line in text.splitlines()] == ["NAME", "more", "there"]


DEFINITIONS = {
    "vhosts": [{"name": "shop"}],
    "parameters": [
        {"component": "shovel", "vhost": "shop", "name": "mover", "value": {"src-uri": "amqp://u:secret@x"}},
        {"component": "federation-upstream", "vhost": "shop", "name": "north", "value": {"uri": "amqp://u:secret@x"}},
        {"component": "vhost-limits", "vhost": "shop", "name": "limits", "value": {"max-queues": 5}},
    ],
    "policies": [{"vhost": "shop", "name": "ha", "pattern": "", "definition": {"ha-mode": "all", "max-length": 5}}],
    "queues": [{"vhost": "shop", "name": "work"}],
}


async def test_what_is_taken_over_of_rabbitmq_and_what_not(weft_command: Run, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    exchanges = [{"vhost": "shop", "name": f"e{n}", "type": "x-consistent-hash"} for n in range(12)]
    file.write_text(json.dumps(DEFINITIONS | {"exchanges": exchanges}))
    code, text = await weft_command("ctl", "import", str(file))
    assert (code, text.count("(x-consistent-hash)"), text.count("\n")) == (1, 10, 1)
    assert text.endswith(" and 2 more; nothing was made: give them another type, or take them out\n")
    assert "shop" not in (await weft_command("ctl", "list", "vhost"))[1]
    file.write_text(json.dumps(DEFINITIONS))
    assert await weft_command("ctl", "import", str(file)) == (
        0,
        "taken over: 1 vhosts, 1 policies, 3 parameters, 1 queues\n"
        "kept, without effect here: shovel 'mover' in 'shop'; "
        "`weft link add` and `weft route add queue` do what it did\n"
        "kept, without effect here: federation-upstream 'north' in 'shop'; "
        "`weft link add` and `weft route add dynamic` do what it did\n"
        "kept, without effect here: ha-mode of policy 'ha' in 'shop'\n",
    )
    code, text = await weft_command("ctl", "import", str(file), "--json")
    assert (code, len(json.loads(text)["without_effect"])) == (0, 3)
