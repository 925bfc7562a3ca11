"""Commands and their mistakes: one line that says what and where, and exit code 2."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from weft import __version__
from weft.cli import COMMANDS, main
from weft.cli.up import LISTEN_DEFAULT
from weft.config import Configuration, parse
from weft.policy.passwords import verify_password


def weft(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"weft {__version__}\n"
    for words in (["help"], ["--help"], []):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"weft {command}" in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([command, "--help"], ["help", command]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        assert f"usage: weft {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("receive q --count 0", "argument --count: 0 is less than 1"),
        ("send q x --count -1", "argument --count: -1 is less than 1"),
        ("send q x --count many", "argument --count: 'many' is not a whole number"),
        ("send q x --header colour", "--header 'colour' is not KEY=VALUE"),
        ("send q x --timeout -3", "argument --timeout: -3 is not more than 0 seconds"),
        ("send q x --timeout nan", "argument --timeout: nan is not more than 0 seconds"),
        ("send", "the following arguments are required: address"),
        ("bench --seconds 0", "argument --seconds: 0 is not more than 0 seconds"),
        ("bench --seconds soon", "argument --seconds: 'soon' is not a number of seconds"),
        ("bench --senders 0", "argument --senders: 0 is less than 1"),
        ("bench --size -1", "argument --size: -1 is less than 0"),
        ("top --pause -1", "argument --pause: -1 is not more than 0 seconds"),
        ("up --name=", "'' is not a node name"),
    ],
)
def test_values_that_make_no_sense(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: int | str | None = main(words.split())
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"weft {words.split(maxsplit=1)[0]}: {complaint}")
    assert told.count("\n") == 1


def test_letters_that_a_terminal_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main(["größe"]) == 2
    sys.stderr.flush()
    assert sys.stderr.buffer.getvalue().startswith(b"weft: no command 'gr\\xf6\\xdfe'")  # type: ignore[attr-defined]


def test_who_interrupts_early_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports take a while on a busy machine."""

    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.import_module", interrupted)
    assert main(["receive", "q"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["upp"], "weft: no command 'upp', did you mean 'up'?"),
        (["up", "--port", "1"], "weft up: unrecognized arguments: --port 1 (try weft up --help)"),
        (["up", "--nam", "x"], "weft up: unrecognized arguments: --nam x (try weft up --help)"),
        (["up", "--listen"], "weft up: argument --listen: expected one argument (try weft up --help)"),
        (
            ["up", "--listen", "here:there"],
            "weft up: 'here:there' is not HOST:PORT (the port is a number from 0 to 65535)",
        ),
        (["up", "--name", "a/b"], "weft up: 'a/b' is not a node name"),
        (["up", "--config", "/nowhere.toml"], "weft up: cannot read /nowhere.toml: no such file or directory"),
        (["up", "--data-dir", "/dev/null/data"], "weft up: cannot use data folder /dev/null/data: not a directory"),
        (["config", "--check", "/nowhere.toml"], "weft config: cannot read /nowhere.toml: no such file or directory"),
        (["hash-password"], "weft hash-password: the password is empty"),
    ],
)
def test_mistakes_are_one_line(words: list[str], complaint: str) -> None:
    ran = weft(*words)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith(complaint)
    assert ran.stderr.count("\n") == 1


def test_a_node_is_for_the_programs_of_its_machine_unless_told() -> None:
    assert ip_address(LISTEN_DEFAULT.host).is_loopback


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = weft("up", "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path))
    assert ran.returncode == 2
    assert ran.stderr == f"weft up: cannot listen on 127.0.0.1:{port}: address already in use\n"


def test_a_wrong_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text("[node]\nname = 'edge'\n\n[limits]\nheartbeat = 5\n")
    ran = weft("up", "--config", str(file))
    assert ran.returncode == 2
    assert ran.stderr == f"weft up: {file}:5: unknown key limits.heartbeat, did you mean 'heartbeat_s'?\n"


def test_checking_a_right_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text("[node]\nname = 'edge'\n")
    ran = weft("config", "--check", str(file))
    assert (ran.returncode, ran.stdout) == (0, f"{file} is right\n")


def test_the_printed_schema_is_a_file_of_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    text = capsys.readouterr().out
    assert parse(text) == Configuration()
    uncommented = "".join(line[2:] if line.startswith("# ") else line for line in text.splitlines(keepends=True))
    limits = uncommented[uncommented.index("[limits]") :]
    assert parse(limits) == Configuration()


def test_hashing_a_password() -> None:
    ran = weft("hash-password", stdin="secret\n")
    assert ran.returncode == 0
    assert verify_password("secret", ran.stdout.strip())
    assert "secret" not in ran.stdout
