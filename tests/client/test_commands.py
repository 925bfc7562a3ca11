"""`weft send`, `receive`, `request` and `bench` against a node."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import peers
from client.test_recovery import Life
from weft.client import Message, sync
from weft.client.sync.management import Management


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    peer = peers.start_weft(tmp_path_factory.mktemp("node"))
    yield f"amqp://127.0.0.1:{peer.port}"
    peer.stop()


def weft(*words: str, url: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", *words, "--url", url]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=50)


def test_what_is_sent_is_received(url: str) -> None:
    sent = weft("send", "cli", "--header", "n=1", url=url, given="one\ntwo\n")
    assert sent.returncode == 0, sent.stderr
    assert "sent 2 messages" in sent.stderr
    received = weft("receive", "cli", "--count", "2", url=url)
    assert (received.returncode, received.stdout) == (0, "one\ntwo\n")
    weft("send", "cli", "again", "--count", "2", "--header", "n=1", url=url)
    lines = [
        json.loads(line) for line in weft("receive", "cli", "--wait", "0.3", "--json", url=url).stdout.splitlines()
    ]
    assert [line["body"] for line in lines] == ["again", "again"]
    assert lines[0]["headers"] == {"n": 1}


def test_a_service_answers(url: str) -> None:
    with sync.connect(url) as fabric:

        @fabric.service("shout")
        def shout(request: Message) -> str:
            if request.body == "no":
                raise ValueError("not that")
            return str(request.body).upper()

        shout.start()
        assert weft("request", "shout", "hello", url=url).stdout == "HELLO\n"
        failed = weft("request", "shout", "no", url=url)
        assert (failed.returncode, failed.stderr) == (
            1,
            "weft request: shout answered with an error: ValueError: not that\n",
        )


def test_mistakes_are_one_line() -> None:
    failed = weft("send", "q", "body", "--timeout", "0.3", url="amqp://127.0.0.1:1")
    assert failed.returncode == 1
    assert failed.stderr.startswith("weft send: amqp://127.0.0.1:1: ")
    assert failed.stderr.count("\n") == 1


def test_whatever_bytes_are_sent_are_shown(url: str) -> None:
    command, options = [sys.executable, "-m", "weft", "send", "odd"], ["--url", url]
    typed = [*command, b"\xff!", "--content-type", "application/json", *options]
    assert subprocess.run(typed, timeout=50).returncode == 0
    assert subprocess.run([*command, *options], input=b"\xfe\n{no\n", timeout=50).returncode == 0
    assert weft("receive", "odd", "--count", "3", url=url).stdout == "\\xff!\n\\xfe\n{no\n"


def test_who_interrupts_or_reads_no_more_is_told_nothing(url: str) -> None:
    weft("send", "pipe", "x", "--count", "3000", url=url)
    command = [sys.executable, "-m", "weft", "receive", "pipe", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as receive:
        assert receive.stdout is not None
        assert receive.stderr is not None
        assert receive.stdout.readline() == "x\n"
        receive.stdout.close()
        assert receive.stderr.read() == ""
    assert receive.returncode == 141
    command = [sys.executable, "-m", "weft", "request", "unanswered", "?", "--timeout", "60", "--url", url]
    with (
        sync.connect(url) as fabric,
        fabric.receive("unanswered", accept="explicit", timeout_s=50) as requests,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as request,
    ):
        next(requests).accept()
        request.send_signal(signal.SIGINT)
        assert request.communicate(timeout=50) == ("", "")
    assert request.returncode == 130


@pytest.mark.parametrize("words", [("receive", "patient"), ("ctl", "watch"), ("tap", "amq.topic/#")])
def test_who_waits_is_told_that_the_node_is_gone_and_back(words: tuple[str, ...], tmp_path: Path) -> None:
    life = Life(tmp_path)
    command = [sys.executable, "-m", "weft", *words, "--url", life.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        with sync.connect(life.url) as fabric:
            connections = Management(fabric)
            while len(connections.query("connection")) < 2:
                pass
        life.kill()
        lost = waiting.stderr.readline()
        life.start()
        back = waiting.stderr.readline()
        waiting.terminate()
    life.kill()
    assert lost.startswith(f"connection lost: {life.url}: "), lost
    assert lost.endswith("; trying again\n")
    assert back == f"connected to {life.url} again\n"


def test_a_bench_tells_rates(url: str) -> None:
    ran = weft("bench", "--seconds", "0.5", "--senders", "20", url=url)
    assert ran.returncode == 0, ran.stderr
    assert "messages/s of 1024 bytes" in ran.stdout
    assert "p50" in ran.stdout
