"""Processes for Spark, forked from one that has imported everything: they must be as those that Python starts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.spark.nursery import PREFIX, VERSION, ready_python, start, sweep

SHOWN = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("SHOWN"), os.getcwd(), os.getppid(), "pyarrow" in sys.modules]))
print("told", file=sys.stderr)
sys.exit(7)
"""
WAITS = "import signal; print('here', flush=True); signal.pause()"


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    folder = tmp_path_factory.mktemp("nursery")
    program, process = start(folder)
    yield program, process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=60)
    assert not folder.exists()


def shown(program: Path, folder: Path) -> tuple[list[object], str, int]:
    (folder / "shown.py").write_text(SHOWN)
    env = {**os.environ, "PYTHONPATH": str(folder), "SHOWN": "\udcff yes"}
    command = [str(program), "-m", "shown", "a b", "*"]
    ran = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=60)
    return json.loads(ran.stdout), ran.stderr, ran.returncode


def test_a_copy_is_what_was_asked_for(nursery: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    program, process = nursery
    told = shown(program, tmp_path)
    assert told == ([["a b", "*"], "\udcff yes", str(tmp_path), process.pid, True], "told\n", 7)


def test_a_copy_that_nobody_wants_any_more_ends(nursery: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([nursery[0], "-m", "waits"], stdout=subprocess.PIPE, env=env) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == b"here\n"
        asking.kill()
        # The copy has this file, too: it ends when both are gone.
        assert asking.stdout.read() == b""


def test_a_copy_that_is_killed_is_told(nursery: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    (tmp_path / "kills.py").write_text("import os; os.kill(os.getpid(), 9)")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run([nursery[0], "-m", "kills"], env=env, timeout=60).returncode == 128 + signal.SIGKILL


def test_without_it_python_starts(tmp_path: Path) -> None:
    folder = tmp_path / "nursery"
    folder.mkdir()
    program, process = start(folder)
    with process:
        process.kill()
    told = shown(program, tmp_path)
    assert told == ([["a b", "*"], "\udcff yes", str(tmp_path), os.getpid(), False], "told\n", 7)


def test_what_a_killed_program_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    folders = [tmp_path / f"{PREFIX}{owner}-x" for owner in (ended.pid, os.getpid())]
    elsewhere = tmp_path / f"{PREFIX}{ended.pid}-answers"
    for folder in (*folders, elsewhere):
        folder.mkdir()
    with socket.socket(socket.AF_UNIX) as answers:
        for folder in folders:
            with socket.socket(socket.AF_UNIX) as killed:
                killed.bind(str(folder / "socket"))
        answers.bind(str(elsewhere / "socket"))
        answers.listen()
        sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([folders[1], elsewhere])


@pytest.mark.parametrize("code", [VERSION, "print(6 * 7)"])
def test_what_is_no_module_python_answers(nursery: tuple[Path, subprocess.Popen[bytes]], code: str) -> None:
    answers = [subprocess.check_output([python, "-c", code]) for python in (nursery[0], sys.executable)]
    assert answers[0] == answers[1]


def test_a_session_has_it(spark: object) -> None:
    assert spark.sparkContext.pythonExec == ready_python()  # type: ignore[attr-defined]
