"""Rules: the file, what fires and how often, what the actions do to the world."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from weft.model.errors import ConfigError, Unavailable
from weft.rules import Firing, Observation, Rule, Watch, parse
from weft.rules.actions import build, say_only
from weft.rules.file import ActionSettings

FIRING = Firing(Rule("depth", attribute="messages", above=10), "transaction_test", raised=True, value=12)


def queue(name: str, **attributes: object) -> Observation:
    return Observation("queue", name, attributes)


def fired(watch: Watch, at_s: float, *observations: Observation) -> list[tuple[str, bool]]:
    return [(firing.object, firing.raised) for firing in watch.observe(observations, at_s)]


# the file


def test_a_section_watches_the_object_of_its_name() -> None:
    rules = parse('[rules.transaction_test]\nattribute = "messages"\nabove = 100\n').rules
    assert rules == (Rule("transaction_test", object="transaction_test", attribute="messages", above=100.0),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rules"),
        ("[rules.a]\n", "needs an attribute"),
        ('[rules.a]\nattribute = "m"\nabove = 1\nbelow = 2', "one of above, below"),
        ('[rules.a]\nattribute = "m"\nabove = "x"', "above must be a number"),
        ('[rules.a]\nattribute = "m"\nabove = 1\nclear = 2', "never ends"),
        ('[rules.a]\nattribute = "m"\nabove = 1\ncolour = 2', "no such key: colour"),
        ('[rules.a]\nattribute = "m"\nabove = 1\naction = "snmp"', r"\[actions.snmp\]"),
        ('[rules.a]\nattribute = "m"\nabove = 1\nseverity = "bad"', "severity must be one of"),
        ('[rules.a]\nevent = "link.#"\nabove = 1', "either an event"),
        ('[actions.x]\nkind = "fax"', "kind must be one of"),
        ("[actions.webhook]\n", "needs url"),
        ('[actions.command]\nrun = "reboot"', "list of strings"),
        ("rules = 3", "must be sections"),
        ("[rules.a", "rules:"),
        ("[rule.a]", "no such section: rule"),
        ('interval_s = 0\n[rules.a]\nattribute = "m"\nabove = 1', "interval_s must be"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


# what fires


def test_a_threshold_fires_once_per_crossing() -> None:
    watch = Watch([Rule("r", object="t*", attribute="messages", above=10)])
    assert fired(watch, 0, queue("t1", messages=10), queue("other", messages=99)) == []
    assert fired(watch, 1, queue("t1", messages=11)) == [("t1", True)]
    assert fired(watch, 2, queue("t1", messages=500)) == []
    assert fired(watch, 3, queue("t1", messages=10)) == [("t1", False)]
    assert fired(watch, 4, queue("t1", messages=11)) == [("t1", True)]


def test_hysteresis_keeps_an_alarm_until_it_is_cleared() -> None:
    watch = Watch([Rule("r", attribute="messages", above=10, clear=5)])
    assert fired(watch, 0, queue("q", messages=11)) == [("q", True)]
    assert fired(watch, 1, queue("q", messages=6)) == []
    assert fired(watch, 2, queue("q", messages=11)) == []
    assert fired(watch, 3, queue("q", messages=5)) == [("q", False)]


def test_below_is_the_other_way_round() -> None:
    watch = Watch([Rule("r", attribute="consumers", below=1)])
    assert fired(watch, 0, queue("q", consumers=1)) == []
    assert fired(watch, 1, queue("q", consumers=0)) == [("q", True)]
    assert fired(watch, 2, queue("q", consumers=1)) == [("q", False)]


def test_a_short_peak_is_no_alarm_where_time_is_asked_for() -> None:
    watch = Watch([Rule("r", attribute="messages", above=10, for_s=5)])
    assert fired(watch, 0, queue("q", messages=11)) == []
    assert fired(watch, 4, queue("q", messages=3)) == []
    assert fired(watch, 5, queue("q", messages=11)) == []
    assert fired(watch, 9, queue("q", messages=11)) == []
    assert fired(watch, 10, queue("q", messages=11)) == [("q", True)]


def test_a_rate_needs_two_looks_and_survives_a_counter_that_begins_anew() -> None:
    watch = Watch([Rule("r", attribute="published", above=10, rate=True)])
    assert fired(watch, 0, queue("q", published=1_000)) == []
    assert fired(watch, 2, queue("q", published=1_020)) == []
    assert fired(watch, 4, queue("q", published=1_042)) == [("q", True)]
    assert fired(watch, 5, queue("q", published=0)) == []
    assert fired(watch, 6, queue("q", published=5)) == [("q", False)]


def test_nested_and_missing_attributes() -> None:
    watch = Watch([Rule("r", attribute="latency.p99_ms", above=100)])
    assert fired(watch, 0, queue("q"), queue("w", latency="soon"), queue("v", latency={"p99_ms": 101})) == [("v", True)]


def test_the_latency_of_a_type_is_watched_whatever_dots_it_has() -> None:
    watch = Watch([Rule("r", attribute="types.order.placed.p99_us", above=100)])
    slow, quick = {"p99_us": 101}, {"p99_us": 1}
    assert fired(watch, 0, queue("q", types={"order": slow, "order.placed": quick})) == []
    assert fired(watch, 1, queue("q", types={"order": quick, "order.placed": slow})) == [("q", True)]
    assert fired(watch, 2, queue("q", types={})) == []


def test_what_is_gone_is_forgotten() -> None:
    watch = Watch([Rule("r", attribute="messages", above=10)])
    assert fired(watch, 0, queue("q", messages=11)) == [("q", True)]
    assert fired(watch, 1) == []
    assert fired(watch, 2, queue("q", messages=11)) == [("q", True)]


def test_queues_of_one_name_have_each_an_alarm_of_their_own() -> None:
    watch = Watch([Rule("r", attribute="messages", above=10)])
    full, empty = queue("q", vhost="/", messages=11), queue("q", vhost="other", messages=0)
    assert fired(watch, 0, full, empty) == [("q", True)]
    assert fired(watch, 1, full, empty) == []
    assert fired(watch, 2, empty, full) == []


def test_events_are_matched_by_their_key() -> None:
    watch = Watch([Rule("cut", kind="link", event="link.down.#")])
    assert [one.text for one in watch.on_event("link.down.critical.a-b.n1", {"object": "a-b", "text": "refused"})] == [
        "cut: link a-b: refused"
    ]
    assert watch.on_event("link.up.info.a-b.n1", {"object": "a-b"}) == []
    (other,) = watch.on_event("link.down.warning.u1.n1", {"object": "u1", "class": "uplink"})
    assert (other.text, other.as_dict()["class"]) == ("cut: uplink u1: link.down.#", "uplink"), (
        "an event says its class"
    )


# actions


async def act(kind: str, firing: Firing = FIRING, **options: Any) -> None:
    await build(ActionSettings(kind, kind, options), node="n1", send=None)(firing)


async def test_a_log_line_goes_to_its_file(tmp_path: Path) -> None:
    file = tmp_path / "alarms.log"
    await act("log", file=str(file))
    await act("log", Firing(FIRING.rule, "transaction_test", raised=False, value=3), file=str(file))
    lines = file.read_text().splitlines()
    assert lines[0].endswith("warning depth: queue transaction_test: messages is 12, above 10")
    assert lines[1].endswith("cleared depth: queue transaction_test: messages is 3, no longer above 10")


async def test_a_passive_check_result_has_its_fields(tmp_path: Path) -> None:
    file = tmp_path / "command"
    await act("nagios", file=str(file), host="broker1", service="queues")
    words = file.read_text().split("] ", 1)[1].split(";")
    assert words[:4] == ["PROCESS_SERVICE_CHECK_RESULT", "broker1", "queues", "1"]


async def test_events_and_scaling_requests_are_messages() -> None:
    sent: list[tuple[Any, ...]] = []

    async def send(*words: Any) -> None:
        sent.append(words)

    for kind, options in (("event", {}), ("scale", {"service": "user.lifecycle", "add": 2})):
        await build(ActionSettings(kind, kind, options), node="n.1", send=send, tell=send)(FIRING)
    (class_name, kind, name, event), (address, request) = sent
    assert (class_name, kind, name, event["value"]) == ("rule", "crossed", "depth", 12)
    assert (address, request["service"], request["add"]) == ("weft.scaling", "user.lifecycle", 2)


async def test_a_webhook_posts_json() -> None:
    bodies: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204 if self.path == "/yes" else 500)
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            await act("webhook", url=f"{url}/yes")
            with pytest.raises(Unavailable, match="500"):
                await act("webhook", url=f"{url}/no")
        finally:
            server.shutdown()
            thread.join()
    assert bodies[0]["object"] == "transaction_test"
    with pytest.raises(ConfigError, match="http"):
        build(ActionSettings("w", "webhook", {"url": "file:///etc/passwd"}), node="n", send=None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (b"", "no answer within 0.3 s"),
        (b"HTTP/1.1 500 ", "no answer within 0.3 s"),
        (b"what is this\r\n\r\n", "cannot call"),
        (b"HTTP/1.1 500 Sorry\r\nContent-Length: 9999\r\n\r\nstill", "answered 500"),
    ],
    ids=["nothing", "half a line", "no HTTP", "half a body"],
)
async def test_a_webhook_whose_server_is_odd_is_told_in_time(words: bytes, said: str) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await asyncio.sleep(0)
        open_.append(writer)

    open_: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        timeout_s = 0.3 if "0.3" in said else 30
        with pytest.raises(Unavailable, match=said):
            await act("webhook", url=f"http://127.0.0.1:{port}/", timeout_s=timeout_s)
        for writer in open_:
            writer.close()


def until_closed(reader: int) -> None:
    """Wait until no process has the other end of a pipe."""
    with open(reader, "rb") as file:
        os.set_blocking(reader, True)
        assert file.read() == b""


async def test_a_command_knows_what_fired_and_may_not_hang(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = "import os,sys; open(sys.argv[1],'w').write(sys.argv[2]+' '+os.environ['WEFT_OBJECT'])"
    await act("command", run=[sys.executable, "-c", program, str(out), "{value}"])
    assert out.read_text() == "12.0 transaction_test" or out.read_text() == "12 transaction_test"
    pid, pipe = tmp_path / "pid", tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(Unavailable, match="took more than"):
        await act("command", run=["sh", "-c", f"sleep 600 > {pipe} & wait"], timeout_s=0.5)
    await asyncio.wait_for(asyncio.to_thread(until_closed, reader), 30)  # what it has started ended with it
    # What it leaves running, with its standard error open, is not waited for; what it says is kept only at its end.
    await act("command", run=["sh", "-c", f"sleep 600 & echo $! > {pid}"], timeout_s=30)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    with pytest.raises(Unavailable, match=r"(?s)ended with 1: y.*end$") as failed:
        await act("command", run=["sh", "-c", "yes | head -c 1000000 >&2; echo end >&2; exit 1"], timeout_s=30)
    assert len(str(failed.value)) < 5_000
    with pytest.raises(Unavailable, match="ended with 3: no"):
        await act("restart", run=[sys.executable, "-c", "import sys; print('no', file=sys.stderr); sys.exit(3)"])
    with pytest.raises(Unavailable, match="cannot run"):
        await act("command", run=[str(tmp_path / "nothing")])
    with pytest.raises(ConfigError, match="colour"):
        build(ActionSettings("c", "command", {"run": ["x", "{colour}"]}), node="n", send=None)


async def test_a_trap_is_version_2c_with_the_firing_in_it() -> None:
    from pyasn1.codec.ber import decoder
    from pysnmp.proto import api

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        await act("snmp", target=f"127.0.0.1:{receiver.getsockname()[1]}", community="weft")
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(receiver, 65_536), 5)
    protocol = api.PROTOCOL_MODULES[api.SNMP_VERSION_2C]
    message, rest = decoder.decode(data, asn1Spec=protocol.Message())
    assert not rest
    assert bytes(protocol.apiMessage.get_community(message)) == b"weft"
    pdu = protocol.apiMessage.get_pdu(message)
    values = {str(oid): value.prettyPrint() for oid, value in protocol.apiTrapPDU.get_varbinds(pdu)}
    assert values["1.3.6.1.4.1.8072.9999.9999.1.3"] == "transaction_test"
    assert values["1.3.6.1.4.1.8072.9999.9999.1.9"] == FIRING.text


@pytest.mark.parametrize(
    "options", [{"target": "no such host:1"}, {"target": "127.0.0.1:x"}, {"target": "127.0.0.1:9", "oid": "a"}]
)
async def test_a_trap_that_cannot_be_sent_is_told(options: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match="cannot send a trap"):
        await act("snmp", **options)


async def test_a_dry_run_only_says_what_it_would_do() -> None:
    said: list[str] = []
    await say_only(ActionSettings("restart", "restart", {"run": ["reboot"]}), said.append)(FIRING)
    assert said == [f"would do restart: {FIRING.text}"]
