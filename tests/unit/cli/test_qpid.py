"""The words of Apache Qpid's tools, wrong ones: one line, exit code 2, and nobody is asked anything."""

from __future__ import annotations

import pytest

from weft.cli import qpid_config, qpid_route

CONFIG = [
    (["add"], "'add' is no command"),
    (["add", "exchange", "direct"], "is no command, or has too few or too many words"),
    (["queues", "a", "b"], "too many words"),
    (["--broker-addr"], "expected one argument"),
    (["--durabel", "add", "queue", "q"], "unrecognized arguments: --durabel"),
    (["-a", "", "queues"], "'' is not a broker: write [user/password@]host[:port]"),
    (["-a", "a@b/c", "queues"], "is not a broker"),
    (["-a", "h:99999", "queues"], "Port out of range"),
    (["-a", "h:port", "queues"], "Port could not be cast"),
    (["-a", "[::1", "queues"], "Invalid IPv6 URL"),
    (["-a", "http://h", "queues"], "begins with none of amqp://"),
    (["-t", "nan", "queues"], "nan is not more than 0 seconds"),
    (["--max-queue-count", "-1", "add", "queue", "q"], "-1 is less than 0"),
    (["--argument", "x", "add", "queue", "q"], "'x' is not KEY=VALUE"),
    (["--limit-policy", "flood", "add", "queue", "q"], "invalid choice: 'flood'"),
]
ROUTE = [
    ([], "'' is no command"),
    (["queue", "add", "h:1"], "too few"),
    (["dynamic", "push", "h:1", "h:2", "x"], "is no command"),
    (["queue", "add", "h:port", "h:2", "x", "q"], "is not amqp://host:port"),
    (["queue", "add", "h:1", "h:99999", "x", "q"], "Port out of range"),
    (["link", "add", "@", "h"], "is not a broker"),
    (["--credit", "-5", "queue", "add", "h:1", "h:2", "x", "q"], "-5 is less than 0"),
    (["-t", "rdma", "link", "list"], "invalid choice: 'rdma'"),
    (["route", "map", "h:port"], "is not a URL"),
]


@pytest.mark.parametrize(
    ("tool", "words", "complaint"),
    [(qpid_config.main, *case) for case in CONFIG] + [(qpid_route.main, *case) for case in ROUTE],
)
def test_wrong_words_are_one_line(tool, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = tool(words)
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_nobody_there_is_one_line_and_another_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert qpid_config.main(["-t", "0.1", "-a", "127.0.0.1:1", "queues"]) == 1
    assert qpid_route.main(["--timeout", "0.1", "queue", "add", "127.0.0.1:1", "127.0.0.1:2", "x", "q"]) == 1
    assert capsys.readouterr().err == "Failed: Unavailable - amqp://127.0.0.1:1: connection refused\n" * 2
