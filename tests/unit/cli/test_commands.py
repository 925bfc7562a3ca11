"""Commands and their mistakes: one line that says what and where, and exit code 2."""

from __future__ import annotations

import io
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from time import monotonic

import pytest

import weft as weft_module
from weft import __version__
from weft.cli import COMMANDS, load, main, remote
from weft.cli.examples import EXAMPLES
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
        ("send q x --count 9223372036854775808", "argument --count: 9223372036854775808 is more than"),
        ("send q x --content-type=ü", "argument --content-type: '\\xfc' is not plain ASCII"),
        ("receive q --offset 99999999999999999999", "argument --offset: 99999999999999999999 is more than"),
        ("bench --size 999999999999", "--size is at most 134217728 bytes"),
        ("queue list --url amqp://..", "'amqp://..': no host can have that name"),
        ("plan /dev/zero", "/dev/zero: larger than 4194304 bytes"),
        ("send q x --count=--", "argument --count: expected one argument"),
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


def test_who_interrupts_while_modules_are_read_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(weft_module.__file__).parents[1]}"}
    ran = subprocess.run([sys.executable, "-m", "weft"], capture_output=True, text=True, timeout=30, env=env)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


def test_who_is_told_to_ignore_interrupts_does() -> None:
    code = "import signal, weft.__main__; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    script = f"trap '' INT; exec {shlex.join([sys.executable, '-c', code])}"
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_words_may_stand_on_both_sides_of_options() -> None:
    _, parser = load("send")
    options = parser.parse_args(["orders", "one", "--header", "a=b", "two"])
    assert (options.address, options.body, options.header) == ("orders", ["one", "two"], ["a=b"])
    assert parser.parse_args(["orders", "--", "--count"]).body == ["--count"]
    _, parser = load("ctl")
    options = parser.parse_args(["add", "queue", "q", "--json", "durable=true"])
    assert (options.name, options.values, options.json) == ("q", ["durable=true"], True)


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
        (["up", "--listen", "..:0"], "weft up: '..:0' is not HOST:PORT (no host can have that name)"),
        (["up", "--name", "a/b"], "weft up: 'a/b' is not a node name"),
        (["up", "--config", "/nowhere.toml"], "weft up: cannot read /nowhere.toml: no such file or directory"),
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


def test_a_folder_that_cannot_be_used() -> None:
    ran = weft("up", "--data-dir", "/dev/null/data")
    assert ran.returncode == 2
    assert ran.stderr == "weft up: cannot use data folder /dev/null/data: not a directory\n"


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL where nobody listens, nor will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"amqp://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("words", ["queue list", "send q x", "top --once", "browse q", "ctl watch", "map"])
def test_nobody_listens(words: str, nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever asks a node that is not there knows at once, and what to do about it."""
    started = monotonic()
    assert main([*words.split(), "--url", nobody]) == 1
    assert monotonic() - started < remote.TIMEOUT_S
    told = capsys.readouterr()
    command = words.split(maxsplit=1)[0]
    assert told.out == ""
    assert told.err.startswith(f"weft {command}: {nobody}: connection refused: nobody listens there; start a node by")
    assert told.err.count("\n") == 1


def test_a_command_waits_for_its_node_if_told_to(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    started = monotonic()
    assert main(["queue", "list", "--url", nobody, "--wait-for-node", "0.5"]) == 1
    assert monotonic() - started >= 0.5
    assert "connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_right(command: str) -> None:
    for line in EXAMPLES[command]:
        words = shlex.split(line.removeprefix('eval "$(').partition(" > ")[0].partition(" < ")[0].removesuffix(')"'))
        assert words[:2] == ["weft", command]
        load(command)[1].parse_args(words[2:])


def test_options_of_a_command_stand_after_its_word_too() -> None:
    _, parser = load("queue")
    for words in ("--url u --json list", "list --json --url u", "--url u list --json"):
        options = parser.parse_args(words.split())
        assert (options.url, options.json, options.word) == ("u", True, "list")
    assert parser.parse_args(["list"]).json is False


@pytest.mark.parametrize(
    ("widths", "room", "fitted"),
    [
        ([5, 7], 80, [5, 7]),
        ([5, 200, 7], 80, [5, 68, 7]),
        ([100, 100], 50, [25, 25]),
        ([100, 100, 3], 5, [8, 8, 3]),
    ],
)
def test_tables_fit_a_terminal(widths: list[int], room: int, fitted: list[int]) -> None:
    assert remote.fitting(widths, room) == fitted


def test_only_a_terminal_has_an_edge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"name": "q" * 60, "ready": 1}]
    remote.print_rows(rows, ("name", "ready"))
    assert "q" * 60 in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    remote.print_rows(rows, ("name", "ready"))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[1] == f"{'q' * 32}…  1"


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


WRONG = {
    "[[policies]]\nname = 'p'\npattern = '.'\ndefinition = {max-lenght = 1}": "4: Validation failed: 'max-lenght' "
    "is no key of a definition; did you mean 'max-length'?",
    "[[policies]]\nname = 'p'\npattern = '.'\ndefinition = {max-length = 'x'}": "4: Validation failed: 'max-length' ",
    "[[links]]\nname = 'up'\nurls = ['http://x']": "1: 'http://x' is not amqp://",
    "[[routes]]\nlink = 'up'\nkind = 'queu'": "1: route 'up:pull:queu': kind is 'queu'; it may be queue, ",
    "[[users]]\nname = 'ann'\npassword_hash = 'abc'": "3: a password hash must look like scrypt$",
    "[[vhosts]]\nname = 'a'\n[[vhosts]]\nname = ''": "4: the name of a virtual host must have 1 to 255 bytes",
    "[[listen]]\naddress = 'h:0'\ntls_cert = 'none.pem'\ntls_key = 'none.key'": "3: cannot read {folder}/none.pem: no ",
    "[http]\naddress = 'h:0'\ntls_cert = 'none.pem'\ntls_key = 'none.key'": "3: cannot read {folder}/none.pem: no ",
    "[directory]\nurl = 'zk://x'": "2: 'zk://x' is no directory: write embedded: or zookeeper://host:port/root",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_file_is_right_for_whoever_checks_it_or_starts_with_it(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(text)
    for command, words in (("config", ["--check"]), ("up", ["--data-dir", str(tmp_path / "data"), "--config"])):
        assert main([command, *words, str(file)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"weft {command}: {file}:{WRONG[text].format(folder=tmp_path)}")
        assert told.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text("[node]\nname = 'edge'\n", encoding="utf-8-sig")
    assert main(["config", "--check", str(file)]) == 0


def test_what_may_be_left_out_is_not_called_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ctl", "add", "queue"])
    assert ended.value.code == 2
    assert "required: name (try" in capsys.readouterr().err
