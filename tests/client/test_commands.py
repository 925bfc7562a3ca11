"""`weft send`, `receive`, `request` and `bench` against a node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import peers
from weft.client import Message, sync


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
    assert failed.returncode == 2
    assert failed.stderr.startswith("weft send: amqp://127.0.0.1:1: ")
    assert failed.stderr.count("\n") == 1


def test_a_bench_tells_rates(url: str) -> None:
    ran = weft("bench", "--seconds", "0.5", "--senders", "20", url=url)
    assert ran.returncode == 0, ran.stderr
    assert "messages/s of 1024 bytes" in ran.stdout
    assert "p50" in ran.stdout
