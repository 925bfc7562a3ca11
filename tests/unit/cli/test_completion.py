"""Shells complete what is typed: each script is run by the shell that it is for."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from weft.cli import main

CASES = {
    "weft que": "queue",
    "weft queue li": "list",
    "weft queue list --js": "--json",
    "weft queue add --arg": "--argument",
    "weft completion fi": "fish",
    "weft route add queue hub --bytes": "--bytes-per-s-max",
    "weft log kep": "kept",
}
"""What is typed, and the one word that fits: a command, its words, its options, or else a file."""


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script of a shell, beside a file whose name may be completed."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    assert main(["completion", request.param]) == 0
    file = tmp_path / f"weft.{request.param}"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    (tmp_path / "kept").touch()
    return file


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash(script: Path) -> None:
    asks = [
        f'COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _weft; echo "${{COMPREPLY[@]}}"'
        for typed in CASES
    ]
    offered = _answers(["bash", "-c", "\n".join(["source weft.bash", *asks])], script)
    assert offered == [word.replace("kept", "") for word in CASES.values()]  # `-o default`: files are bash's own


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish(script: Path) -> None:
    asks = [f"complete -C {shlex.quote(typed)}" for typed in CASES]
    assert _answers(["fish", "--no-config", "-c", "\n".join(["source weft.fish", *asks])], script) == [*CASES.values()]


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh(script: Path) -> None:
    """Only a terminal completes in zsh: `weft` is a function there, which tells what came of a line."""
    typed = "".join(f"{line}\t\n" for line in CASES)
    offered: list[str] = []
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(script.parent)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "HOME": str(script.parent)})
    try:
        with open(terminal, "r+b", buffering=0) as both:
            both.write(b'source weft.zsh; weft() { print -r -- "so: ${@[-1]}"; }\n' + typed.encode() + b"exit\n")
            while len(offered) < len(CASES) and (line := _line(both.fileno())):
                offered += [word.strip() for word in line.split("so: ")[1:] if "$" not in word]
    finally:
        os.waitpid(pid, 0)
    assert offered == [*CASES.values()]


def _line(terminal: int) -> str:
    """The next line that a terminal shows, or nothing after its end."""
    line = b""
    try:
        while not line.endswith(b"\n"):
            line += os.read(terminal, 1)
    except OSError:  # Linux' way to say that the other side of a terminal is closed
        return ""
    return line.decode()


def _answers(command: list[str], script: Path) -> list[str]:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=script.parent, check=False)
    assert ran.stderr == ""
    return ran.stdout.splitlines()
